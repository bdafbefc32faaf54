"""Tables of Markdown."""

from collections.abc import Iterable


def table(*rows: Iterable[str]) -> str:
    """The table of these rows of cells, the first of which is its head."""
    head, *others = ([*row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *others))
