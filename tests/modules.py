"""Parts of the tests of modules that other tests need, too."""

import ast
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gateway"
PORTS = {
    "ports",
    "offering",
    "capabilities",
    "forwarding_broker",
    "interception",
    "moments",
    "changes",
    "deadlines",
    "durable",
}


@attrs.frozen
class Module:
    """The properties of a file of the package that the rules check."""

    name: str  # its path without its suffix
    part: str  # that it belongs to
    imports: tuple[str, ...]
    of_random: tuple[str, ...]  # the names that it uses of the module


@cache
def modules() -> tuple[Module, ...]:
    """All of them: to read them again for each rule would take most of the time."""
    return tuple(read_module(path) for path in sorted(PACKAGE.rglob("*.py")))


def read_module(path: Path) -> Module:
    name, nodes = path.relative_to(PACKAGE).with_suffix(""), ast.walk(ast.parse(path.read_text()))
    imports: list[str] = []
    of_random: list[str] = []
    for node in nodes:
        match node:
            case ast.Import():
                imports += [alias.name for alias in node.names]
            case ast.ImportFrom():
                # `from a import b` is both a and a.b, since b may be a module.
                module = "." * node.level + (node.module or "")
                names = [alias.name for alias in node.names if alias.name != "__version__"]
                imports += [module, *(f"{module}.{name}" for name in names)]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[argument]):
                imports += [
                    part.value.rstrip(".")
                    for part in ast.walk(argument)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
            case ast.Attribute(value=ast.Name(id="random")):
                of_random.append(node.attr)
    of_random += [each.removeprefix("random.") for each in imports if each.startswith("random.")]
    return Module(str(name), name.parts[0], tuple(imports), tuple(of_random))
