"""The wrappers and interceptors of a process, printed from the lists that it uses."""

from collections.abc import Mapping

from gateway.app.assembly.interceptors import interceptors
from gateway.app.assembly.wrappers import WRAPPERS
from tests.references.tables import table


def parts() -> Mapping[str, str]:
    """The generated parts of docs/explanation/architecture.md about wrappers and interceptors."""
    rows = ([row.name, f"`{row.module}`", row.when or "always"] for row in interceptors())
    return {
        "wrappers": f"```\n{picture()}```\n",
        "interceptors": table(("interceptor", "module", "there with"), *rows),
    }


def picture() -> str:
    """The wrappers of a pair, each inside of the one above it."""
    rows = [(row.name, row.module, row.when) for row in WRAPPERS]
    rows.append(("the pair", "gateway/pairing/broker.py", "[pairing]"))
    lines = ["endpoint"]
    for depth, (name, module, when) in enumerate(rows):
        start = f"{'   ' * depth}└─ {name}"
        lines.append(f"{start:28} {module:40} with {when}")
    indent = "   " * len(rows)
    lines.append(f"{indent}├─ primary:   shards' places ─ interceptors ─ adapter")
    lines.append(f"{indent}└─ secondary: interceptors ─ adapter")
    return "".join(f"{line}\n" for line in lines)
