"""An outage as Markdown, for a post-mortem."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from gateway.domain.health.heartbeats import date_text
from gateway.extensions.outage_report.outage import (
    DepthPoint,
    EntityOutage,
    OutageOrder,
    ProcessOutage,
    RecordedOutage,
)

WIDEST: Final = 40  # characters of a bar of the curve
MOST_ROWS: Final = 24  # of the curve
MOST_ENTITIES: Final = 20  # rows that somebody reads; all of them are in the JSON
UNKNOWN: Final = "not known"


def report_of(outages: Sequence[RecordedOutage]) -> str:
    """All of them, the latest first."""
    if not outages:
        return "No outage is known.\n"
    return "\n".join(line for outage in outages for line in _lines(outage))


def _lines(outage: RecordedOutage) -> Iterator[str]:
    yield f"# Outage of {date_text(outage.began)}"
    yield ""
    yield from _table(("", ""), _figures(outage))
    yield ""
    entities = [
        (
            each.entity,
            UNKNOWN if each.began is None else date_text(each.began),
            _back(each),
            _number(each.diverted),
            each.reason,
        )
        for each in outage.entities[:MOST_ENTITIES]
    ]
    if entities:
        yield "## Entities"
        yield ""
        yield from _table(("entity", "in trouble since", "back", "diverted", "reason"), entities)
        if outage.troubled > len(entities):
            yield f"\nand {outage.troubled - len(entities)} more."
        yield ""
    if outage.orders:
        yield "## Orders of operators that held messages back"
        yield ""
        yield from _table(("order", "for", "in force since", "until"), map(_order, outage.orders))
        yield ""
    if outage.shares:
        yield "## Processes"
        yield ""
        heading = ("process", "diverted", "moved home", "possibly twice", "slowest send")
        yield from _table(heading, map(_share, outage.shares))
        yield ""
    if outage.curve:
        yield "## Messages on the backlog"
        yield ""
        yield "```text"
        yield from _curve(outage.curve)
        yield "```"
        yield ""


def _back(entity: EntityOutage) -> str:
    if entity.began is None:
        return UNKNOWN
    return "not yet" if entity.back is None else date_text(entity.back)


def _figures(outage: RecordedOutage) -> Iterator[tuple[str, str]]:
    yield "cause", outage.cause
    yield "began", date_text(outage.began)
    if outage.namespace_back is not None:
        yield "the primary answered again", date_text(outage.namespace_back)
    back = outage.entities_back
    if outage.entities:
        yield "the last entity was back", "not yet" if back is None else date_text(back)
    yield "over", _ending(outage)
    yield "entities", str(outage.troubled)
    yield "diverted messages", _number(outage.diverted)
    yield "moved home by syphons", _number(outage.moved)
    yield "twice (hedged sends)", _number(outage.twice)
    yield "possibly twice, by producers' sends", _number(outage.possibly_twice)
    yield "possibly twice, by the syphon", _number(outage.possibly_twice_by_syphon)
    yield "sends with an error at the client", _number(outage.failed)
    yield "slowest send", _seconds(outage.longest_stall)
    dead = ", ".join(f"{reason}: {count}" for reason, count in outage.dead_lettered.items())
    yield "dead-lettered", dead or "0"
    yield "figures of", _processes(outage)


def _order(order: OutageOrder) -> Sequence[str]:
    ended = "the end" if order.ended is None else date_text(order.ended)
    return order.action, order.text, date_text(order.since), ended


def _share(share: ProcessOutage) -> Sequence[str]:
    counts = (share.diverted, share.moved, share.possibly_twice)
    return share.process, *map(_number, counts), _seconds(share.longest_stall)


def _processes(outage: RecordedOutage) -> str:
    alone = "this process" if outage.processes == 1 else f"{outage.processes} processes of the pair"
    left = f"; not known: {', '.join(outage.left_out)}" if outage.left_out else ""
    return f"{alone}{left}"


def _ending(outage: RecordedOutage) -> str:
    if outage.interrupted:
        return "not known: this process ended before it"
    if outage.ended is None:
        return "it goes on"
    lasted = timedelta(seconds=round((outage.ended - outage.began).total_seconds()))
    doubt = "" if outage.empty else "; nobody could tell whether the backlog was empty"
    return f"{date_text(outage.ended)}, after {lasted}{doubt}"


def _curve(points: Sequence[DepthPoint]) -> Iterator[str]:
    highest = max((each.pending or 0 for each in points), default=0)
    step = -(-len(points) // MOST_ROWS) or 1
    for each in points[::step]:
        if each.pending is None:
            yield f"{each.at:%H:%M:%S}          ?"
            continue
        bar = "#" * (-(-each.pending * WIDEST // highest) if highest else 0)
        yield f"{each.at:%H:%M:%S} {each.pending:>10} {bar}".rstrip()


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{' --- |' * len(heading)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    """Names and reasons come from outside: they end neither their cell nor their line."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g} s"


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
