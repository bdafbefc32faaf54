"""The rules of the house: who may import whom, what is pure, how long a file is."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gateway"

PORTS = {"ports", "capabilities", "passing"}
SIBLINGS = {"brokers", "claims", "frontends", "listener", "pairing", "telemetry"}

# A part may import the parts named after it, and itself. Nothing else of gateway.
# A module with a rule of its own is named by its path.
MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "wire": {"domain"},
    "wire/amqp/engine": set(),
    "wire/amqp/sasl": set(),
    "ports": {"domain"},
    "capabilities": {"ports", "domain"},
    "passing": {"ports", "capabilities", "domain"},
    "net": {"wire", "domain"},
    "brokers": PORTS | {"net", "wire", "domain"},
    "frontends": PORTS | {"net", "wire", "domain"},
    "pairing": PORTS | {"domain"},
    "listener": PORTS | {"domain"},
    "claims": PORTS | {"domain"},
    "telemetry": PORTS | {"domain"},
    "testing": SIBLINGS | PORTS | {"net", "wire", "domain"},  # it builds whole installations
    "config": SIBLINGS | {"net", "wire", "domain"},
    "workers": {"config", "net"},
    "app": SIBLINGS | PORTS | {"config", "net", "wire", "domain"},
    "demo": PORTS | {"app", "config", "brokers", "net", "wire", "domain"},
    "commands": {"demo", "app", "config", "domain", "wire"},
    "cli": set(),  # it names the modules of the commands, and imports them when asked for
    "__main__": {"cli"},
    "__init__": set(),
}

PURE = {"domain", "wire"}
IMPURE_MODULES = {
    "apsw",
    "asyncio",
    "h11",
    "http.client",
    "http.server",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "trio",
    "urllib.request",
}
CLASSES_OF_RANDOM = {"Random", "SystemRandom"}

LONGEST_MODULE = 400

# In two halves, so that this file doesn't contain what it looks for.
REGISTRY_HOSTS = {
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".org"),
    ("crates", ".io"),
    ("docker", ".io"),
    ("ghcr", ".io"),
    ("quay", ".io"),
    ("proxy.golang", ".org"),
}


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Each module's path without its suffix, the part it belongs to, and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("")
        yield str(name), name.parts[0], ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """Each imported name in full; `from a import b` is both a and a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def tracked_files() -> Iterator[Path]:
    # A CI job's checkout may belong to another user, which git refuses unless told otherwise.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # A file that was deleted and not yet committed is still in the listing.
    yield from (ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file())


def test_every_part_imports_only_what_its_layer_allows() -> None:
    wrong = [
        f"{module}.py imports {name}"
        for module, part, tree in modules()
        for name in imports(tree)
        if name.startswith("gateway.")
        and name.split(".")[1] not in MAY_IMPORT.get(module, MAY_IMPORT[part]) | {part}
    ]

    assert wrong == []


def test_every_part_has_a_rule() -> None:
    parts = {part for _, part, _ in modules()}

    assert parts <= set(MAY_IMPORT)


def test_imports_are_written_in_full() -> None:
    wrong = [
        f"{module}.py imports {name}"
        for module, _, tree in modules()
        for name in imports(tree)
        if name.startswith(".")
    ]

    assert wrong == []


def test_pure_parts_do_no_io() -> None:
    wrong = [
        f"{module}.py imports {name}"
        for module, part, tree in modules()
        if part in PURE
        for name in imports(tree)
        if name in IMPURE_MODULES or name.split(".")[0] in IMPURE_MODULES
    ]

    assert wrong == []


def test_chance_is_injected() -> None:
    used = [
        (module, node.attr)
        for module, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
    ]
    imported = [
        (module, name.removeprefix("random."))
        for module, _, tree in modules()
        for name in imports(tree)
        if name.startswith("random.")
    ]
    wrong = [
        f"{module}.py uses random.{name}"
        for module, name in used + imported
        if name not in CLASSES_OF_RANDOM
    ]

    assert wrong == []


def test_no_module_is_long() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    too_long = {path: length for path, length in lengths.items() if length > LONGEST_MODULE}

    assert too_long == {}


def test_no_tracked_file_names_a_registry() -> None:
    hosts = [(name + suffix).encode() for name, suffix in REGISTRY_HOSTS]
    wrong = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if any(host in path.read_bytes() for host in hosts)
    ]

    assert wrong == []


def test_locks_name_neither_an_index_nor_a_path() -> None:
    forbidden = re.compile(r"^\s*--(?!hash=)|\w://| @ ", re.MULTILINE)
    locks = [path for path in (ROOT / "locks").iterdir() if path.is_file()]
    wrong = [path.name for path in locks if forbidden.search(path.read_text())]

    assert wrong == []


def test_the_lock_for_node_names_no_source_of_a_package() -> None:
    lock = json.loads((ROOT / "locks" / "node" / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}

    assert [name for name, entry in packages.items() if "resolved" in entry] == []
    assert [name for name, entry in packages.items() if "integrity" not in entry] == []
