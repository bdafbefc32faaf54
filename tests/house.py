"""
The picture of the house in docs/explanation/architecture.md, drawn from the imports of `gateway`.
"""

from collections.abc import Mapping

from tests.modules import PORTS, modules

PORT = "the port"  # `PORTS` in the picture: small files beside each other, not a package
NOT_DRAWN = {"__init__", "__main__"}
LISTING = "extensions/listing"  # the core reads it; it only names what is in the extensions
# Processes of their own, above the library that the gateway reads.
APART = ("listening/agent", "listening/process", "store/engine", LISTING)


def packages() -> dict[str, set[str]]:
    """The packages that each package imports; `PORTS` count as one."""
    found: dict[str, set[str]] = {}
    for module in modules():
        if module.part not in NOT_DRAWN:
            found.setdefault(drawn_as(module.name), set()).update(
                drawn_as(name.removeprefix("gateway.").replace(".", "/"))
                for name in module.imports
                if name.startswith("gateway.")
            )
    found[LISTING] = set()
    return {name: imports - {name} for name, imports in found.items()}


def drawn_as(path: str) -> str:
    for part in APART:
        if f"{path}/".startswith(f"{part}/"):
            return part
    part = path.partition("/")[0]
    if path.startswith(("extensions/extension", "extensions/tables")):
        return LISTING
    return PORT if part in PORTS else part


def floors(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The packages by floor, top first: each is directly below the lowest that imports it."""
    left, found = dict(imports), list[list[str]]()
    while left:
        floor = sorted(left.keys() - set().union(*left.values()))
        if not floor:
            raise ValueError(f"packages import each other in a circle: {sorted(left)}")
        found.append(floor)
        for name in floor:
            del left[name]
    return found


def reached(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """The packages that a package imports, itself or by way of others."""
    direct = imports[start]
    return direct.union(*(reached(name, imports) for name in direct))


def arrows(start: str, imports: Mapping[str, set[str]]) -> list[str]:
    """The imports of a package that don't follow from those of a package that it imports."""
    direct = imports[start]
    return sorted(direct.difference(*(reached(name, imports) for name in direct)))


def picture(imports: Mapping[str, set[str]]) -> str:
    width = max(map(len, imports))
    drawn = [
        [f"{name:{width}} ──▶ {', '.join(arrows(name, imports))}" for name in floor]
        for floor in floors(imports)
    ]
    lines = [[line.removesuffix(" ──▶ ").rstrip() for line in floor] for floor in drawn]
    between = "\n" + "─" * max(len(line) for floor in lines for line in floor) + "\n"
    return between.join("\n".join(floor) for floor in lines) + "\n"


def parts() -> Mapping[str, str]:
    return {"imports": f"```\n{picture(packages())}```\n"}
