"""What stands between an endpoint and an adapter, printed from the lists that the program uses."""

from collections.abc import Mapping

from gateway.app.assembly.interceptors import INTERCEPTORS
from tests.references.tables import table


def parts() -> Mapping[str, str]:
    """The generated part of docs/explanation/architecture.md about interceptors."""
    rows = ([row.name, f"`{row.module}`", row.when or "always"] for row in INTERCEPTORS)
    return {"interceptors": table(("interceptor", "module", "there with"), *rows)}
