"""The wrappers, interceptors and services of a process, printed from the lists that it uses."""

from collections.abc import Mapping

from gateway.app.assembly.interceptors import interceptors
from gateway.app.assembly.roles import Role
from gateway.app.assembly.services import services
from gateway.app.assembly.wrappers import home_wrappers, wrappers
from tests.references.tables import table


def parts() -> Mapping[str, str]:
    """The generated parts of docs/explanation/architecture.md about the assembly of a process."""
    rows = ([row.name, f"`{row.module}`", row.when or "always"] for row in interceptors())
    roles = {role: role.name.lower() for role in Role if role is not Role.LISTENER}
    running = (
        [row.name, *("yes" if role in row.roles else "" for role in roles)] for row in services()
    )
    return {
        "wrappers": f"```\n{picture()}```\n",
        "interceptors": table(("interceptor", "module", "there with"), *rows),
        "services": table(("service", *roles.values()), *running),
    }


def picture() -> str:
    """The wrappers of a pair, each inside of the one above it."""
    rows = [(row.name, row.module, row.when) for row in wrappers()]
    rows.append(("the pair", "gateway/pairing/broker.py", "[pairing]"))
    lines = ["endpoint"]
    for depth, (name, module, when) in enumerate(rows):
        start = f"{'   ' * depth}└─ {name}"
        lines.append(f"{start:28} {module:40} with {when}")
    indent = "   " * len(rows)
    inside = " ─ ".join([*(row.name for row in home_wrappers()), "interceptors", "adapter"])
    lines.append(f"{indent}├─ primary:   {inside}")
    lines.append(f"{indent}└─ secondary: interceptors ─ adapter")
    return "".join(f"{line}\n" for line in lines)
