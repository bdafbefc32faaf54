"""The tables of options of docs/reference/configuration.md, from `conf/pairgate.toml`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.references.tables import table

FILE: Final = Path(__file__).parents[2] / "conf" / "pairgate.toml"
BEFORE_SECTIONS: Final = "The file"
AS_BEFORE: Final = "."  # the comment of an option that a section of this name has before
SECTION: Final = re.compile(r"^(?:# )?(\[\[?[\w.]+\]\]?)")
# The comment begins at the first "#" outside of a string.
OPTION: Final = re.compile(r'^(# )?(\w+) = ((?:"[^"]*"|[^"#])*?) *# *(.*)$')


def parts() -> Mapping[str, str]:
    """The table of each section, by its heading. Sections of the same name share a table."""
    sections: dict[str, list[tuple[str, str, str]]] = {}
    section = BEFORE_SECTIONS
    for line in FILE.read_text().splitlines():
        if found := SECTION.match(line):
            section = found[1]
        elif found := OPTION.match(line):
            is_example, name, value, meaning = found.groups()
            rows = sections.setdefault(section, [])
            if meaning != AS_BEFORE:
                rows.append((f"`{name}`", f"*`{value}`*" if is_example else f"`{value}`", meaning))
            elif f"`{name}`" not in {shown for shown, _, _ in rows}:
                raise ValueError(f"no section {section} before explains {name}")
    return {name: table(("option", "value", "meaning"), *rows) for name, rows in sections.items()}
