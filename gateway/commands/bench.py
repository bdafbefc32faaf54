"""`pairgate bench`: a load of its own, and how long each step takes."""

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.benching import LoadPlan, RunFigures
from gateway.app.operations.benching import bench as run_bench
from gateway.app.operations.ways_in import NamespaceChoice
from gateway.app.runtime import Runtime
from gateway.commands.place import add_place, complete_entity
from gateway.commands.terminal import Duration, Integer, Invocation, command, printable, run
from gateway.demo.live import keep_shown
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

UNTIL_EMPTY: Final = 3600.0  # seconds; with --count and without --for
LARGEST: Final = 100 * 1024 * 1024  # bytes
STEPS: Final = {"send": "sends", "complete": "completions", "send to receipt": "journeys"}


@command
@click.argument("entity", metavar="QUEUE", shell_complete=complete_entity)
@add_place
@click.option(
    "--mode",
    type=click.Choice(["send", "receive", "both"]),
    default="both",
    show_default=True,
    help="`receive` takes what a `send` before it has left.",
)
@click.option(
    "--connections",
    type=Integer(1, 1000),
    default=1,
    show_default=True,
    help="Connections that share the load.",
)
@click.option(
    "--in-flight",
    type=Integer(1, 10_000),
    default=10,
    show_default=True,
    help="Messages of each connection that are in progress together.",
)
@click.option(
    "--size",
    type=Integer(1, LARGEST),
    default=1024,
    show_default=True,
    help="Bytes of a body.",
)
@click.option(
    "--for", "seconds", type=Duration(above_zero=True), help="Duration of the load.  [default: 10s]"
)
@click.option("--count", type=Integer(1), help="Messages at most.")
def bench(invocation: Invocation, place: NamespaceChoice, entity: str, **given: Any) -> None:
    """
    Send messages to QUEUE and receive them, and show rates and latencies.

    The load goes to the running gateway or, with --namespace, directly to a namespace. QUEUE must
    have no messages of others. Exit code 1: some steps failed. 75: nothing was done, as there was
    no answer.
    """
    plan = _plan(entity, given)
    figures = RunFigures()
    console = Console(stderr=True)
    on_screen = console.is_terminal and not invocation.as_json
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if on_screen else nullcontext():
        beside = partial(keep_shown, live, lambda: _counters(figures)) if on_screen else None
        config = invocation.read_with()
        run(run_bench, config, Runtime(), place, plan, figures, beside=beside)
    invocation.print(value_of(plan, figures), *_lines(plan, figures))
    sys.exit(code_of(figures))


def code_of(figures: RunFigures) -> ExitCode:
    if not figures.errors and (figures.sent or figures.received):
        return ExitCode.DONE
    unanswered = set(figures.errors) <= {"NoAnswer", "Unavailable", "Unreachable"}
    nothing = not (figures.sent or figures.received)
    return ExitCode.TEMPORARY if nothing and figures.errors and unanswered else ExitCode.FAILED


def _plan(entity: str, given: dict[str, Any]) -> LoadPlan:
    try:
        path = EntityPath.parse(entity)
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    limit = UNTIL_EMPTY if given["count"] is not None else 10.0
    return LoadPlan(
        entity=path,
        sends=given["mode"] != "receive",
        receives=given["mode"] != "send",
        connections=given["connections"],
        in_flight=given["in_flight"],
        size=given["size"],
        seconds=given["seconds"] or limit,
        count=given["count"],
    )


def value_of(plan: LoadPlan, figures: RunFigures) -> dict[str, Any]:
    """The figures as JSON. Times are seconds, rates messages a second."""
    return {
        "entity": plan.entity.name,
        "target": figures.target,
        "connections": plan.connections,
        "in_flight": plan.in_flight,
        "size": plan.size,
        "sent": figures.sent,
        "send_rate": _rate(figures.sent, figures.send_seconds),
        "send_seconds": figures.sends.figures(),
        "received": figures.received,
        "receive_rate": _rate(figures.received, figures.receive_seconds),
        "complete_seconds": figures.completions.figures(),
        "send_to_receipt_seconds": figures.journeys.figures(),
        "errors": dict(figures.errors),
    }


def _rate(messages: int, seconds: float) -> float | None:
    return messages / seconds if messages and seconds else None


def _lines(plan: LoadPlan, figures: RunFigures) -> list[Table | Text]:
    lines: list[Table | Text] = []
    for done, messages, seconds in (
        ("sent to", figures.sent, figures.send_seconds),
        ("received from", figures.received, figures.receive_seconds),
    ):
        rate = _rate(messages, seconds)
        told = "" if rate is None else f" in {seconds:.2f} s: {rate:.0f}/s"
        if messages or (done == "sent to") is plan.sends:
            text = f"{messages} messages {done} {plan.entity}, {figures.target}{told}"
            lines.append(Text(printable(text)))
    if figures.sent or figures.received:
        lines.append(_table(figures))
    if figures.errors:
        errors = ", ".join(f"{times} {name}" for name, times in figures.errors.items())
        text = f"errors: {errors}; the last: {figures.last_error}"
        lines.append(Text(printable(text), style="red"))
    return lines


def _table(figures: RunFigures) -> Table:
    table = Table("ms", "mean", "p50", "p90", "p99", "p99.9", "max")
    for name, field in STEPS.items():
        found = getattr(figures, field).figures()
        if found is not None:
            table.add_row(name, *(f"{1000 * seconds:.2f}" for seconds in found.values()))
    return table


def _counters(figures: RunFigures) -> Text:
    text = f"{figures.sent} sent, {figures.received} received, {figures.errors.total()} errors"
    return Text(text)
