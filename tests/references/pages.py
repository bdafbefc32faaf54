"""The pages with generated parts, each between two marks that `written` knows."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests import house
from tests.references import (
    admin_api,
    commands,
    compatibility,
    configuration,
    events,
    library,
    wrappers,
)

DOCS: Final = Path(__file__).parents[2] / "docs"
PARTS: Final[Mapping[str, Callable[[], Mapping[str, str]]]] = {
    "explanation/architecture.md": lambda: {**house.parts(), **wrappers.parts()},
    "reference/admin-api.md": admin_api.parts,
    "reference/command-options.md": commands.parts,
    "reference/compatibility.md": compatibility.parts,
    "reference/configuration.md": configuration.parts,
    "reference/events.md": events.parts,
    "reference/library.md": library.parts,
}
PART: Final = re.compile(
    r"^(<!-- written by `make references`: (\S[^\n]*) -->\n\n).*?(^<!-- end -->$)",
    re.MULTILINE | re.DOTALL,
)


def written(page: str, parts: Mapping[str, str]) -> str:
    """
    The text of the page with these parts, by the names in its marks.

    Raises:
        ValueError: the page's marks aren't those of the parts, in their order.
    """
    if (names := [name for _, name, _ in PART.findall(page)]) != list(parts):
        raise ValueError(f"marks of {names}, not of {list(parts)}")
    return PART.sub(lambda found: f"{found[1]}{parts[found[2]]}\n{found[3]}", page)
