"""Each page with generated parts is what the generators write."""

import re

import pytest

from tests.references import configuration
from tests.references.pages import DOCS, PART, PARTS, written


@pytest.mark.parametrize("name", PARTS)
def test_a_page_is_what_its_generator_writes(name: str) -> None:
    page = (DOCS / name).read_text()

    assert written(page, PARTS[name]()) == page, "write it again: make references"


def test_no_other_page_has_marks() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}

    assert {name for name in pages if PART.search((DOCS / name).read_text())} == set(PARTS)


def test_a_table_of_options_is_below_the_heading_of_its_section() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    marks = {
        heading.strip("`"): [name for _, name, _ in PART.findall(text)]
        for heading, _, text in (
            part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)
        )
    }

    assert {heading: names for heading, names in marks.items() if names} == {
        section: [section] for section in configuration.parts()
    }


def test_a_part_replaces_what_is_between_its_marks() -> None:
    begin, end = "<!-- written by `make references`: a -->\n\n", "<!-- end -->\n"

    assert written(f"x\n{begin}old\n{end}y\n", {"a": "new\n"}) == f"x\n{begin}new\n\n{end}y\n"


def test_a_page_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"marks of \[\], not of \['a'\]"):
        written("x\n", {"a": "new\n"})
