"""`pairgate redrive`: shows dead letters of the backlog or of a queue, and moves them back."""

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_gateway
from gateway.commands.place import complete_entity
from gateway.commands.terminal import (
    Duration,
    Integer,
    Invocation,
    Number,
    add_reason,
    command,
    printable,
    run,
)
from gateway.domain.dead_letters import EXPIRED
from gateway.domain.errors import InvalidRequest
from gateway.extensions.redrive import redriving
from gateway.extensions.redrive.order import (
    MOST_REDRIVEN,
    MOST_SHOWN,
    REDRIVE,
    Group,
    RedriveOrder,
    Sample,
    Selection,
    Survey,
)
from gateway.extensions.redrive.redriving import RedriveOptions, RedriveOutcome

PROBLEM = "yellow"


# As dead letters have one. An earlier version filtered by `--reason`: such an order would move all.
_DEAD_LETTER_REASON = re.compile(r"[A-Z]\w*[a-z]\w*[A-Z]\w*")


def _refuse_filter(reason: str) -> None:
    if _DEAD_LETTER_REASON.fullmatch(reason):
        text = f"--reason: is for the log; to filter, name --with-reason {reason}"
        raise Failure(text, ExitCode.WRONG)


def _refuse_reason(context: click.Context, parameter: click.Parameter, given: str) -> None:
    """Refuse the filter's former name: to show dead letters is nothing that the log has."""
    if given:
        text = f"name the filter --with-reason: --with-reason {given}"
        raise click.BadParameter(text, context, parameter)


_FILTERS = (
    click.option(
        "--with-reason",
        "reasons",
        multiple=True,
        metavar="REASON",
        help="Only dead letters with this reason. Repeatable.",
    ),
    click.option(
        "--entity",
        "entities",
        multiple=True,
        metavar="PATTERN",
        help="Only dead letters of these entities, such as orders/*. Repeatable.",
    ),
    click.option(
        "--older-than", type=Duration(), help="Only what is on the backlog for longer, such as 1h."
    ),
    click.option("--newer-than", type=Duration(), help="Only what is on the backlog for less."),
    click.option("--label", help="The backlog with this label. Default: the pair's label."),
    click.option("--spool", is_flag=True, help="Use the gateway's spool instead of the secondary."),
    click.option("--id", "ids", multiple=True, metavar="MESSAGE-ID", help="Only it. Repeatable."),
    click.option("--namespace", default="", metavar="NAME", help="Of QUEUE. Default: the primary."),
    click.option(
        "--from",
        "source",
        default="",
        metavar="QUEUE",
        help="The queue that has the dead letters of QUEUE. Default: its dead-letter queue.",
    ),
    click.argument("queue", default="", metavar="[QUEUE]", shell_complete=complete_entity),
)


def add_filters(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters; `_wish` reads them."""
    for add in reversed(_FILTERS):
        function = add(function)
    return function


@command
@add_gateway
@add_filters
@add_reason
@click.option(
    "--rate",
    type=Number(0.0),
    default=100.0,
    show_default=True,
    help="Maximum messages per second; 0: no limit.",
)
@click.option(
    "--to", "target", default="", metavar="ENTITY", help="Move those of QUEUE there. Default: back."
)
@click.option(
    "--set",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give those of QUEUE this application property. Repeatable.",
)
@click.option(
    "--unset", "without", multiple=True, metavar="NAME", help="Remove this one. Repeatable."
)
@click.option(
    "--body",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Give those of QUEUE this body.",
)
@click.option(
    "--execute",
    "executes",
    is_flag=True,
    help="Move the dead letters. Without it, nothing changes.",
)
def redrive(
    invocation: Invocation, executes: bool, rate: float, admin: AdminChoice, **given: Any
) -> None:
    """
    Show why messages of the backlog are dead-lettered, and move them back into it.

    The syphon moves them to the primary from there: fix the cause first. With QUEUE: the dead
    letters of that queue, of any namespace, which are moved back into it. Expired messages are
    moved only with --with-reason TTLExpiredException: their time to live starts again.

    Exit code 3: some couldn't be moved. 75: the namespace doesn't answer.
    """
    _refuse_filter(given["reason"])
    runtime = Runtime()
    now = runtime.now()
    body = given.pop("body")
    given["body"] = None if body is None else body.read()
    given["executes"] = True  # what a dry run shows must be possible
    wish = attrs.evolve(_wish(admin, now, given), executes=executes, rate=rate or None)
    with Bar(Console(stderr=True), shown=not invocation.as_json) as bar:
        config = invocation.read().config
        outcome = run(redriving.redrive, config, runtime, wish, begin=bar.begin, moved=bar.advance)
    if invocation.as_json:
        invocation.print(value_of(outcome, executes=executes, now=now))
    else:
        _print(outcome, executes=executes, now=now)
    sys.exit(outcome.code)


@command
@add_gateway
@add_filters
@click.option("--reason", hidden=True, default="", expose_value=False, callback=_refuse_reason)
@click.option(
    "--peek",
    type=Integer(0, MOST_REDRIVEN),
    default=0,
    help="Show so many of them.",
)
@click.option(
    "--preview",
    type=Integer(0, MOST_SHOWN),
    default=0,
    metavar="BYTES",
    help="Show so much of the bodies of those of QUEUE, too.",
)
def dead_letters(invocation: Invocation, admin: AdminChoice, **given: Any) -> None:
    """
    Show the dead letters of the backlog by reason and entity, or those of QUEUE; nothing is
    changed.

    `redrive` moves them back, `purge --dead-letters` deletes those of one queue. Exit code 3: some
    queues couldn't be read. 75: the namespace doesn't answer.
    """
    runtime = Runtime()
    now = runtime.now()
    wish = _wish(admin, now, given)
    config = invocation.read().config
    outcome = run(
        redriving.redrive, config, runtime, wish, begin=lambda _: None, moved=lambda _: None
    )
    if invocation.as_json:
        value = value_of(outcome, executes=False, now=now)
        samples = [_sample_value(each, now) for each in outcome.survey.samples]
        wanted = ("through", "messages", "groups", "problems")
        invocation.print({**{name: value[name] for name in wanted}, "samples": samples})
    else:
        _print_letters(outcome, now)
    sys.exit(outcome.code)


def _wish(admin: AdminChoice, now: datetime, given: dict[str, Any]) -> RedriveOptions:
    selection = Selection(
        reasons=given["reasons"],
        entities=given["entities"],
        after=_before(now, given["newer_than"]),
        before=_before(now, given["older_than"]),
    )
    keys = {key.name: given[key.name] for key in REDRIVE.keys if key.name in given}
    try:
        order = RedriveOrder(selection=selection, **keys)
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    return RedriveOptions(order=order, label=given["label"], admin=admin)


def _sample_value(sample: Sample, now: datetime) -> dict[str, Any]:
    fields = attrs.asdict(sample)
    enqueued = fields.pop("enqueued")
    return {**fields, "age": None if enqueued is None else (now - enqueued).total_seconds()}


def _print_letters(outcome: RedriveOutcome, now: datetime) -> None:
    console = Console(soft_wrap=True)
    _print_survey(console, outcome, now)
    if outcome.survey.samples:
        table = Table("message id", "entity", "reason", "bytes", "age", "body")
        for each in outcome.survey.samples:
            table.add_row(
                Text(printable(each.message_id)),
                Text(printable(each.entity or "unknown")),
                Text(printable(each.reason)),
                "unknown" if each.size is None else str(each.size),
                _age(each.enqueued, now),
                Text(printable(each.body or "")),
            )
        console.print(table)
    text = f"{outcome.through}: {outcome.survey.messages} dead letters"
    console.print(Text(printable(text)))


def _before(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now - timedelta(seconds=seconds)


class Bar:
    """A progress bar, on a terminal only."""

    def __init__(self, console: Console, *, shown: bool) -> None:
        self._progress = Progress(
            "redriven",
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._task: TaskID | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, survey: Survey) -> None:
        self._stack.enter_context(self._progress)
        self._task = self._progress.add_task("", total=survey.moves)

    def advance(self, messages: int) -> None:
        if self._task is not None:
            self._progress.advance(self._task, messages)


def value_of(outcome: RedriveOutcome, *, executes: bool, now: datetime) -> dict[str, Any]:
    """The outcome as JSON; ages are in seconds, and unknown values are null."""
    survey, redriven = outcome.survey, outcome.redriven
    return {
        "through": outcome.through,
        "dry_run": not executes,
        "messages": survey.messages,
        "moves": survey.moves,
        "groups": [_group_value(group, now) for group in survey.groups],
        "moved": redriven.moved if redriven is not None else 0,
        "left": redriven.left if redriven is not None else 0,
        "unknown": redriven.unknown if redriven is not None else 0,
        "problems": list(_problems(outcome)),
    }


def _group_value(group: Group, now: datetime) -> dict[str, Any]:
    fields = attrs.asdict(group)
    oldest, newest = fields.pop("oldest"), fields.pop("newest")
    return {
        **fields,
        "oldest_age": None if oldest is None else (now - oldest).total_seconds(),
        "newest_age": None if newest is None else (now - newest).total_seconds(),
    }


def _problems(outcome: RedriveOutcome) -> Iterable[str]:
    redriven = () if outcome.redriven is None else outcome.redriven.problems
    return dict.fromkeys((*outcome.survey.problems, *redriven))


def _print_survey(console: Console, outcome: RedriveOutcome, now: datetime) -> None:
    survey = outcome.survey
    if survey.groups:
        console.print(_table(survey, now))
    for group in survey.groups:
        if group.problem:
            console.print(
                Text(printable(f"{group.reason}: the syphon can't move them: {group.problem}")),
                style=PROBLEM,
            )
    for problem in _problems(outcome):
        console.print(Text(printable(problem)), style=PROBLEM)


def _print(outcome: RedriveOutcome, *, executes: bool, now: datetime) -> None:
    console = Console(soft_wrap=True)
    _print_survey(console, outcome, now)
    survey, redriven = outcome.survey, outcome.redriven
    if any(group.reason == EXPIRED and not group.moves for group in survey.groups):
        console.print(Text(f"expired messages are moved with --with-reason {EXPIRED} only"))
    if not executes:
        text = f"{survey.moves} of {survey.messages} dead letters would be moved: add --execute"
    elif redriven is None:
        text = "nothing to move"
    else:
        left = f", {redriven.left} left" if redriven.left else ""
        left += f", {redriven.unknown} unknown" if redriven.unknown else ""
        where = outcome.target or "the backlog"
        text = f"{redriven.moved} messages are on {where} again{left}"
    console.print(Text(printable(f"{outcome.through}: {text}")))


def _table(survey: Survey, now: datetime) -> Table:
    table = Table("reason", "entity", "messages", "to move", "oldest", "newest")
    for group in survey.groups:
        table.add_row(
            Text(printable(group.reason)),
            Text(printable(group.entity or "unknown")),
            str(group.messages),
            str(group.moves),
            _age(group.oldest, now),
            _age(group.newest, now),
        )
    return table


def _age(date: datetime | None, now: datetime) -> str:
    if date is None:
        return "unknown"
    return str(timedelta(seconds=max(0, round((now - date).total_seconds()))))
