"""Tables of Markdown."""

from collections.abc import Iterable


def table(head: Iterable[str], *rows: Iterable[str]) -> str:
    """
    The table of these rows of cells.

    Raises:
        ValueError: a cell has a `|`, which not every reader of Markdown takes for text.
    """
    first, *others = ([*row] for row in (head, *rows))
    if wrong := [cell for row in others for cell in row if "|" in cell]:
        raise ValueError(f"no cells of a table: {wrong}")
    return "".join(f"| {' | '.join(row)} |\n" for row in (first, ["---"] * len(first), *others))
