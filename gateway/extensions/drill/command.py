"""`pairgate drill`: an outage, rehearsed with the running gateway."""

import sys
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from typing import Any, Final

import attrs
import click
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.asking import ask_status, give
from gateway.app.operations.ways_in import NamespaceChoice, open_place
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_gateway
from gateway.commands.place import complete_entity
from gateway.commands.terminal import (
    Duration,
    Integer,
    Interrupted,
    Invocation,
    Number,
    add_reason,
    add_yes,
    ask_consent,
    command,
    printable,
    run,
    run_until_interrupted,
)
from gateway.config.options import Config
from gateway.demo.live import keep_shown
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import EVERYTHING
from gateway.domain.status.process import Status
from gateway.extensions.drill.order import (
    DRILL,
    DRILLS,
    END_DRILL,
    DrillAnswer,
    DrillFault,
    DrillOrder,
)
from gateway.extensions.drill.rehearsal import DrillOutcome, Load, Rehearsal, check_queue
from gateway.wire.pairgate.admin_json import value_of
from gateway.wire.pairgate.control_call import NoKeys

WHOLE: Final = {
    DrillFault.REFUSE: "refuses all connections",
    DrillFault.HANG: "answers nothing",
    DrillFault.SLOW: "answers late",
    DrillFault.BUSY: "is busy",
}


@command
@add_gateway
@click.argument("targets", nargs=-1, metavar="[ENTITY|PATTERN]...", shell_complete=complete_entity)
@click.option(
    "--fault",
    type=click.Choice([each.value for each in DrillFault]),
    default=DrillFault.REFUSE.value,
    show_default=True,
    help="The answer of the cut way to each operation.",
)
@click.option(
    "--for",
    "seconds",
    type=Duration(above_zero=True),
    default="30s",
    show_default=True,
    help="Duration of the drill.",
)
@click.option("--namespace", metavar="NAME", help="Cut the way to it. Default: the primary.")
@click.option(
    "--delay", type=Duration(), default="2s", show_default=True, help="Of --fault slow and busy."
)
@click.option(
    "--load",
    metavar="QUEUE",
    shell_complete=complete_entity,
    help="Send to this queue of the primary, which must be empty and used by nobody else.",
)
@click.option("--no-load", is_flag=True, help="Send nothing: watch the real load.")
@click.option(
    "--rate",
    type=Number(0.1, 1000.0),
    default=20.0,
    show_default=True,
    help="Messages a second of each producer.",
)
@click.option(
    "--producers",
    type=Integer(1, 100),
    default=2,
    show_default=True,
    help="Producers of the load.",
)
@click.option(
    "--wait",
    type=Duration(),
    default="5m",
    show_default=True,
    help="For the return of the entities, and then for the backlog.",
)
@add_reason
@add_yes
@click.option("--end", is_flag=True, help="End the drill that is under way, and nothing else.")
def drill(invocation: Invocation, admin: AdminChoice, end: bool, **given: Any) -> None:
    """
    Rehearse an outage: cut the running gateway off from its primary for a while.

    The namespace itself is never touched, and the way is restored in any case. Exit code 0: nothing
    was lost, and no send failed. 1: that isn't so. 3: not everything could be checked in time.
    """
    config = invocation.read_with("access", "accounts")
    if end:
        _, answer = run(give, config, admin, END_DRILL, NoKeys())
        text = "the drill has ended" if answer.changed else "no drill is under way"
        invocation.print(value_of(answer), text)
        return
    order, choice = _order(given), _choice(given)
    run(_check, config, admin, order)
    if not given["yes"]:
        _ask(order, config.home_name)
    console = Console(stderr=invocation.as_json)
    try:
        outcome = run_until_interrupted(_play, config, admin, order, choice, console)
    except Interrupted:
        raise Failure("interrupted; the way is restored") from None
    if invocation.as_json:
        invocation.print({**attrs.asdict(outcome), "passed": outcome.passed})
    else:
        show_verdict(outcome, console)
    sys.exit(code_of(outcome))


def code_of(outcome: DrillOutcome) -> ExitCode:
    if outcome.findings:
        return ExitCode.FAILED
    return ExitCode.DONE if outcome.passed else ExitCode.PARTLY


@attrs.frozen(kw_only=True)
class Choice:
    """The load that the options describe."""

    queue: EntityPath | None  # None: no load
    rate: float
    producers: int
    wait: float  # seconds


def _order(given: dict[str, Any]) -> DrillOrder:
    try:
        return DrillOrder(
            seconds=given["seconds"],
            fault=DrillFault(given["fault"]),
            targets=given["targets"] or (EVERYTHING,),
            namespace=given["namespace"],
            delay=given["delay"],
            reason=given["reason"],
        )
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error


def _choice(given: dict[str, Any]) -> Choice:
    if (given["load"] is None) is not given["no_load"]:
        raise Failure("one of --load QUEUE and --no-load expected", ExitCode.WRONG)
    try:
        queue = None if given["load"] is None else EntityPath.parse(given["load"])
    except InvalidRequest as error:
        raise Failure(f"--load: {error}", ExitCode.WRONG) from error
    return Choice(queue=queue, rate=given["rate"], producers=given["producers"], wait=given["wait"])


async def _check(config: Config, admin: AdminChoice, order: DrillOrder) -> None:
    """
    Return if the drill can begin.

    Raises:
        Failure: the gateway allows no such drill, or some entities aren't on the primary.
    """
    _, state = await give(config, admin, DRILLS, NoKeys())
    if not state.allowed:
        raise Failure(
            "the gateway's configuration doesn't allow drills. Add these lines and restart it:"
            "\n\n[drill]\nallowed = true",
            ExitCode.WRONG,
        )
    if order.seconds > state.longest:
        text = f"--for: at most {state.longest:g}s expected (drill.max_duration)"
        raise Failure(text, ExitCode.WRONG)
    if state.drill is not None:
        raise Failure(f"a drill is under way: {state.drill.text}; `pairgate drill --end`")
    pair = (await _read(config, admin)).pair
    if pair is not None and pair.entities:
        names = ", ".join(f"{each.entity} ({each.state})" for each in pair.entities[:5])
        raise Failure(f"a drill begins when all entities are on the primary; not so: {names}")


def _ask(order: DrillOrder, primary: str) -> None:
    whole = "all entities" if EVERYTHING in order.targets else " ".join(order.targets)
    name = order.namespace or primary
    ask_consent(
        f"For this gateway {name} {WHOLE[order.fault]} for {order.seconds:g} s ({whole})."
        " Its real clients are affected as by an outage: sends are diverted, receivers get errors.",
        name,
    )


async def _read(config: Config, admin: AdminChoice) -> Status:
    address, status = await ask_status(config, admin)
    if status.pair is None:
        raise Failure(f"the gateway at {address} has no pair, so there is nothing to drill")
    return status


async def _play(
    config: Config, admin: AdminChoice, order: DrillOrder, choice: Choice, console: Console
) -> DrillOutcome:
    began = trio.current_time()

    async def begin(order: DrillOrder) -> DrillAnswer:
        return (await give(config, admin, DRILL, order))[1]

    async def end() -> DrillAnswer:
        return (await give(config, admin, END_DRILL, NoKeys()))[1]

    def narrate(text: str) -> None:
        line = Text.assemble(
            (f"{trio.current_time() - began:5.1f} s", "dim"), f"  {printable(text)}"
        )
        console.print(line, highlight=False)

    async with AsyncExitStack() as stack:
        load = None
        if choice.queue is not None:
            load = await _open_load(stack, config, admin, choice, choice.queue)
        rehearsal = Rehearsal(
            order=order,
            load=load,
            wait=choice.wait,
            read=partial(_read, config, admin),
            begin=begin,
            end=end,
            narrate=narrate,
        )
        live = Live(console=console, auto_refresh=False, transient=True)
        with live if console.is_terminal else nullcontext():
            return await _beside(rehearsal, live if console.is_terminal else None)


async def _beside(rehearsal: Rehearsal, live: Live | None) -> DrillOutcome:
    """Play the rehearsal to its end, and refresh the counters on a terminal."""
    failure: Failure | None = None
    async with trio.open_nursery() as nursery:
        if live is not None:
            nursery.start_soon(keep_shown, live, lambda: _counters(rehearsal))
        try:
            outcome = await rehearsal.play()
        except Failure as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return outcome


def _counters(rehearsal: Rehearsal) -> Table:
    traffic, pair = rehearsal.traffic, rehearsal.pair
    table = Table("sent", "acknowledged", "errors", "longest stall", "on the backlog", "moved")
    pending = None if pair is None else pair.backlog.pending
    table.add_row(
        str(traffic.sent),
        str(traffic.acknowledged),
        str(traffic.errors),
        f"{traffic.longest_stall:.2f} s",
        "unknown" if pending is None else str(pending),
        "" if pair is None else str(pair.syphon.moved),
    )
    return table


async def _open_load(
    stack: AsyncExitStack, config: Config, admin: AdminChoice, choice: Choice, queue: EntityPath
) -> Load:
    """
    Open the way to the queue through the gateway.

    Raises:
        Failure: no endpoint leads there, or the queue can't be used.
    """
    place = NamespaceChoice(port_offset=admin.port_offset, tls=admin.tls)
    runtime = Runtime()
    target = await open_place(stack, config, runtime, place, Right.MANAGE)
    if not target.running:
        raise Failure(
            "the load needs an endpoint `service-bus` or `service-bus-http` of the running gateway;"
            " or use --no-load",
            ExitCode.WRONG,
        )
    await check_queue(target.broker, queue)
    return Load(
        broker=target.broker,
        entity=queue,
        run=runtime.new_id()[:8],
        rate=choice.rate,
        producers=choice.producers,
    )


def show_verdict(outcome: DrillOutcome, console: Console) -> None:
    """The verdict for people."""
    table = Table("", "", title="the verdict", title_justify="left", show_header=False)
    rows = {
        "sent by the load": outcome.sent,
        "acknowledged": outcome.acknowledged,
        "errors at producers": outcome.errors,
        "longest stall of a producer": _seconds(outcome.longest_stall),
        "diverted by the gateway": outcome.diverted,
        "moved by its syphon": outcome.moved,
        "received again": outcome.received,
        "lost": outcome.lost,
        "received twice": outcome.twice,
        "the way was cut for": _seconds(outcome.seconds),
        "all entities were back after": _seconds(outcome.back_after),
        "the backlog was empty after": _seconds(outcome.empty_after),
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, str(value))
    console.print(table)
    for text in outcome.findings:
        console.print(Text(printable(text), style="red"))
    for text in outcome.undecided:
        console.print(Text(printable(f"can't be checked: {text}"), style="yellow"))
    if outcome.passed:
        lost = "nothing acknowledged was lost" if outcome.lost == 0 else "everything came back"
        console.print(Text(lost, style="green"))


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f} s"
