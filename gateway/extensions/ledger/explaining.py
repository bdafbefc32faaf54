"""`pairgate explain`: which way a message went, and where it is, from the ledgers of a pair."""

import sys
from collections.abc import Sequence
from typing import Any, Final

import attrs
import click
import trio
from rich.text import Text

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations import asking
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.gateways import AskedProcess, add_processes, asked_processes
from gateway.commands.place import complete_entity
from gateway.commands.terminal import Invocation, command_for_several, printable, run
from gateway.domain.errors import InvalidRequest
from gateway.domain.health.way_home import WayHome, WayHomeProgress, progress_of
from gateway.extensions.ledger.facts import (
    FACTS,
    MOST_FACTS,
    Fact,
    FactsQuery,
    LedgerFacts,
    PairSide,
    Searched,
    Seen,
    What,
)
from gateway.extensions.ledger.history import (
    MessageHistory,
    MessagePlace,
    Twice,
    histories,
    text_of,
    time_text,
)
from gateway.wire.pairgate.admin_json import value_of

_HERE: Final = "it isn't recorded here"


@attrs.frozen
class _Answer:
    """The answer of a process, or its failure."""

    name: str
    facts: LedgerFacts | None = None
    way_home: WayHomeProgress | None = None  # None: the process didn't tell
    failure: Failure | None = None


@command_for_several
@add_processes
@click.argument("message", metavar="MESSAGE-ID")
@click.option(
    "--entity", default="", shell_complete=complete_entity, help="Search in this queue, too."
)
@click.option("--search/--no-search", default=True, help="Search in both namespaces, by browsing.")
def explain(
    invocation: Invocation, admin: AdminChoice, urls: Sequence[str], message: str, **given: Any
) -> None:
    """
    Tell which way a message went, where it is now, and why, from the pair's ledgers.

    Name each process of the pair that has a ledger by --url or --config: what one of them hasn't
    seen, another one has. Exit code 3: a process didn't answer, so that a part may be missing. Exit
    code 1: nobody knows of such a message.
    """
    try:
        query = FactsQuery(message=message, entity=given["entity"], search=given["search"])
    except InvalidRequest as error:
        raise Failure(str(error), ExitCode.WRONG) from error
    asked = asked_processes(invocation, admin, urls)
    answers = run(_ask_all, asked, query)
    told = [each.facts for each in answers if each.facts is not None]
    if not told:
        raise next(each.failure for each in answers if each.failure is not None)
    facts = list(dict.fromkeys(fact for each in told for fact in each.facts))
    found = histories(facts)
    seen = list(dict.fromkeys(one for each in told for one in each.seen))
    searched = list(dict.fromkeys(one for each in told for one in each.searched))
    way_home = next((each.way_home for each in answers if each.way_home is not None), None)
    value = {
        "message": message,
        "entities": [_value_of(each, way_home) for each in found],
        "seen": [value_of(each) for each in seen],
        "searched": [value_of(each) for each in searched],
        "sources": [_value_of_source(each) for each in answers],
    }
    lines = _lines(message, found, seen, searched, answers, way_home)
    invocation.print(value, *(Text(printable(line)) for line in lines))
    if any(each.failure is not None for each in answers):
        sys.exit(ExitCode.PARTLY)
    sys.exit(ExitCode.DONE if facts or seen else ExitCode.FAILED)


async def _ask_all(asked: Sequence[AskedProcess], query: FactsQuery) -> list[_Answer]:
    answers = dict[int, _Answer]()

    async def ask(index: int, one: AskedProcess) -> None:
        try:
            name, facts = await one.give(FACTS, query)
        except Failure as failure:
            answers[index] = _Answer(one.name, failure=failure)
        else:
            answers[index] = _Answer(name, facts, await _way_home(one))

    async with trio.open_nursery() as nursery:
        for index, one in enumerate(asked):
            nursery.start_soon(ask, index, one)
    return [answers[index] for index in range(len(asked))]


async def _way_home(one: AskedProcess) -> WayHomeProgress | None:
    """None: the process has no pair, or doesn't tell now."""
    try:
        _, status = await asking.ask_status(one.config, one.admin)
    except Failure:
        return None
    return None if status.pair is None else progress_of(status.pair, status.at)


def _value_of(history: MessageHistory, way_home: WayHomeProgress | None) -> dict[str, Any]:
    counts = history.counts
    home = way_home if counts.where is MessagePlace.ON_BACKLOG else None
    return {
        "entity": history.entity,
        "where": counts.where.value,
        "twice": counts.twice.value,
        "queues": list(history.queues) if counts.waiting else [],
        "way_home": None if home is None else home.state.value,
        "why": "" if home is None else home.why,
        "seconds_left": None if home is None else home.seconds_left,
        "facts": [value_of(each) for each in history.facts],
    }


def _value_of_source(answer: _Answer) -> dict[str, Any]:
    if answer.facts is None:
        return {"process": answer.name, "error": str(answer.failure)}
    return {
        "process": f"{answer.name} ({answer.facts.process})",
        "since": answer.facts.since.isoformat(),
        "unwritten": answer.facts.unwritten,
        "gaps": [each.isoformat() for each in answer.facts.gaps],
        "has_more": answer.facts.next is not None,
    }


def _lines(
    message: str,
    found: Sequence[MessageHistory],
    seen: Sequence[Seen],
    searched: Sequence[Searched],
    answers: Sequence[_Answer],
    way_home: WayHomeProgress | None,
) -> list[str]:
    lines = [line for each in found for line in _lines_of(message, each, way_home)]
    if not found:
        lines.append(f"{message}: {_HERE}")
    lines += _lines_of_search(seen, searched)
    return [*lines, *(line for each in answers for line in _lines_of_source(each))]


def _lines_of(message: str, history: MessageHistory, way_home: WayHomeProgress | None) -> list[str]:
    doubt = _doubt(history)
    return [
        f"{message} for {history.entity}:",
        *(f"  {time_text(each.at)}  {text_of(each)}" for each in history.facts),
        f"  {_verdict(history, way_home)}",
        *([] if doubt is None else [f"  {doubt}"]),
    ]


def _lines_of_search(seen: Sequence[Seen], searched: Sequence[Searched]) -> list[str]:
    lines = [_line_of_seen(each) for each in seen]
    unseen = [each for each in searched if not any(one.queue == each.queue for one in seen)]
    whole = [each.queue for each in unseen if each.whole]
    if whole:
        lines.append(f"Not in {', '.join(whole)} now: received, expired, or never there.")
    return lines + [
        f"{each.queue} wasn't searched: {each.why}" for each in unseen if not each.whole
    ]


def _lines_of_source(answer: _Answer) -> list[str]:
    name, facts = answer.name, answer.facts
    if facts is None:
        return [f"{name}: {answer.failure}; what it knows is missing here"]
    lines = [f"{name} remembers all since {time_text(facts.since)}"]
    lines += [
        f"{name}: a process was killed at {time_text(gap)}; its last second may be missing"
        for gap in facts.gaps
    ]
    if facts.next is not None:
        lines.append(f"{name} has more facts than the first {MOST_FACTS:,} of them")
    if facts.unwritten:
        lines.append(f"{name}: {facts.unwritten} facts could not be written")
    return lines


def _verdict(history: MessageHistory, way_home: WayHomeProgress | None) -> str:
    counts = history.counts
    match counts.where:
        case MessagePlace.AT_PRIMARY:
            at = history.latest(What.ACCEPTED, PairSide.PRIMARY)
            moved = "a syphon moved it to" if counts.diverted or counts.completed else "accepted by"
            return f"Now: {moved} the primary{_at(at)}."
        case MessagePlace.ON_BACKLOG:
            return f"Now: it waits in {', '.join(history.queues)}.{_when(way_home)}"
        case MessagePlace.DEAD_LETTERED:
            return "Now: a dead letter of the backlog: `pairgate redrive` moves it on."
        case MessagePlace.COMPLETED:
            return "Now: completed on the backlog, by a receiver or by a syphon to elsewhere."
        case MessagePlace.UNKNOWN:
            return "Now: unknown. No send of it had an answer."
        case _:
            return "Now: nowhere. No namespace accepted it; its client got an error, or sent again."


def _at(fact: Fact | None) -> str:
    return "" if fact is None else f" at {time_text(fact.at)}"


def _when(way_home: WayHomeProgress | None) -> str:
    if way_home is None:
        return " When it comes home isn't known."
    why = f": {way_home.why}" if way_home.why else ""
    left = way_home.seconds_left
    when = "" if left is None else f" The backlog is empty in about {left:.0f} s."
    words = {
        WayHome.MOVING: "The backlog moves",
        WayHome.EMPTY: "The backlog was empty at the last reading",
        WayHome.HELD_BACK: "An operator holds it back",
        WayHome.WAITING: "The backlog waits",
        WayHome.STALLED: "The backlog stalls",
        WayHome.ABSENT: "Nobody moves the backlog",
        WayHome.UNKNOWN: "It isn't known whether the backlog moves",
    }
    return f" {words[way_home.state]}{why}.{when}"


def _doubt(history: MessageHistory) -> str | None:
    counts = history.counts
    if counts.twice is Twice.CERTAIN:
        return f"The primary has accepted it {counts.accepted} times."
    if counts.twice is Twice.POSSIBLE:
        return "It may arrive twice."
    return None


def _line_of_seen(seen: Seen) -> str:
    since = "" if seen.since is None else f" since {time_text(seen.since)}"
    return (
        f"Seen in {seen.queue} on the {seen.side.value}: {seen.state.lower()}, number"
        f" {seen.number}, delivery count {seen.deliveries}{since}."
    )
