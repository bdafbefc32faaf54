"""How a benchmark prints its report: as tables for people, as JSON for machines."""

import json
from collections.abc import Callable
from typing import TypeVar

import attrs
from rich.console import Console

Report = TypeVar("Report", bound=attrs.AttrsInstance)


def print_report(
    report: Report, show: Callable[[Report, Console], None], *, as_json: bool, width: int
) -> None:
    """Print the report as one JSON object, or by `show` on a console of so many characters."""
    if as_json:
        print(json.dumps(attrs.asdict(report), indent=2))
    else:
        show(report, Console(width=width))
