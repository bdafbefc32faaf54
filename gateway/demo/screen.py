"""The demo on a terminal: its steps, its counters, and the verdict."""

import json
import tempfile
from pathlib import Path
from typing import Final

import attrs
import trio
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from gateway.demo.live import keep_shown
from gateway.demo.machines import MachineFailed
from gateway.demo.story import Result, Story

SHOWN: Final = 5  # findings of a failed run


def main(*, as_json: bool = False) -> int:
    """
    Run the demo to its end; return 0 only if nothing was lost. With `as_json` print only the
    result.
    """
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory(prefix="pairgate-demo-") as folder:
        result = _play(Path(folder), console)
    if result is None:
        return 1
    if as_json:
        print(json.dumps(_figures(result)))  # noqa: T201
    else:
        _show_verdict(result, console)
    return 0 if result.passed else 1


def _play(folder: Path, console: Console) -> Result | None:
    result = None
    try:
        result = trio.run(_perform, folder, console)
    except* MachineFailed as group:
        console.print(f"[red]the demo can't run:[/red] {_first_of(group)}")
    return result


def _first_of(group: BaseExceptionGroup[MachineFailed]) -> str:
    error = group.exceptions[0]
    return _first_of(error) if isinstance(error, BaseExceptionGroup) else escape(str(error))


async def _perform(folder: Path, console: Console) -> Result:
    started = trio.current_time()

    def narrate(text: str) -> None:
        console.print(f"[dim]{trio.current_time() - started:5.1f} s[/dim]  {text}", highlight=False)

    story = Story(folder, narrate)
    with Live(_counters(story), console=console, auto_refresh=False, transient=True) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_shown, live, lambda: _counters(story))
            result = await story.run()
            nursery.cancel_scope.cancel()
    return result


def _counters(story: Story) -> Table:
    table = Table("sent", "acknowledged", "by the primary", "diverted", "syphoned", "errors")
    accepted_by_counts = {
        accepted_by.value: count for accepted_by, count in story.traffic.accepted_by_counts.items()
    }
    table.add_row(
        str(story.traffic.sent),
        str(story.traffic.acknowledged),
        str(accepted_by_counts.get("primary", 0)),
        str(accepted_by_counts.get("backlog", 0)),
        str(story.syphoned),
        str(story.traffic.errors),
    )
    return table


def _figures(result: Result) -> dict[str, object]:
    figures = attrs.asdict(result, filter=lambda field, _: field.name != "verdict")
    figures["passed"] = result.passed
    figures["findings"] = [str(finding) for finding in result.verdict.findings]
    figures["undecided"] = list(result.verdict.undecided)
    return figures


def _show_verdict(result: Result, console: Console) -> None:
    table = Table("what", "messages", title="the verdict", title_justify="left")
    rows = {
        "sent": result.sent,
        "acknowledged": result.acknowledged,
        "errors at producers": result.errors,
        "diverted to the backlog": result.diverted,
        "moved to the primary by the syphon": result.syphoned,
        "received from the primary": result.received,
        "duplicates": result.duplicates,
        "lost": result.lost,
    }
    for name, count in rows.items():
        table.add_row(name, str(count))
    console.print(table)
    console.print(
        f"the primary was unavailable for {result.outage:.1f} s;"
        f" the longest stall of a producer was {result.longest_stall:.2f} s"
    )
    if result.duplicates:
        console.print(
            "a duplicate: its outcome was unknown when a process died, so it was sent again"
        )
    for reason in result.verdict.undecided:
        console.print(f"[red]can't be checked:[/red] {escape(reason)}")
    for finding in result.verdict.findings[:SHOWN]:
        console.print(f"[red]broken:[/red] {escape(str(finding))}")
    if result.passed:
        console.print("[green]nothing acknowledged was lost[/green]")
