"""The goals of a benchmark, each of which it prints as reached or missed."""

from collections.abc import Iterable

import attrs
from rich.console import Console


@attrs.frozen(kw_only=True)
class Target:
    text: str
    reached: bool
    found: str


def show_targets(targets: Iterable[Target], console: Console) -> None:
    """Print each goal in a line of its own."""
    for target in targets:
        mark = "[green]reached[/green]" if target.reached else "[yellow]missed[/yellow]"
        console.print(f"{mark}: {target.text}: {target.found}", highlight=False)
