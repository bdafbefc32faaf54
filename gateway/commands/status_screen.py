"""
The status on a screen, for people at three in the morning.

The verdict, the backlog and its way home come first, then each problem with its remedy, and the
bill last: a screen that is too small loses the end. Nothing is written twice, and no line is cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import attrs
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gateway.commands.terminal import printable
from gateway.config.endpoints import SERVE
from gateway.domain.billing import Operation
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.health.abilities import Ability, AbilityState, AbilityStatus
from gateway.domain.health.way_home import progress_of
from gateway.domain.status.pair import RATE_SECONDS, PairStatus, SpoolStatus, TroubledEntity
from gateway.domain.status.process import NamespaceStatus, Status
from gateway.domain.status.sections import Line
from gateway.wire.pairgate.advice import problems_of, span, syphons_text, words_of

RED: Final = "bold red"
MOST_WAITING: Final = 5  # entities that are named with the messages that wait for them
MOST_GROUPS: Final = 10  # of troubled entities: one line each
MOST_NAMED: Final = 3  # entities of a group
MIB: Final = 1024 * 1024
ANSWERS: Final = {AbilityState.YES: "green", AbilityState.NO: "red", AbilityState.UNKNOWN: "yellow"}
STYLES: Final = {"suspect": "yellow", "secondary": "red", "half-open": "yellow", "pinned": "red"}
_LABEL: Final = 8  # columns

Fact = tuple[str | Text, str | Text]  # a label and its text


@attrs.frozen
class Facts:
    """Labels of up to `width` columns, and texts that wrap beside them."""

    facts: Iterable[Fact]
    width: int = _LABEL

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for label, text in self.facts:
            room = max(1, options.max_width - self.width - 1)
            begin = _text(label)
            begin.pad_right(self.width + 1 - len(begin))
            for line in _text(text).wrap(console, room, overflow="fold"):
                line.rstrip()
                yield begin + line
                begin = Text(" " * (self.width + 1))


def _text(text: str | Text) -> Text:
    return Text(printable(text)) if isinstance(text, str) else text


@attrs.frozen
class OneScreen:
    """Shows as many lines as the terminal has, and says how many are missing."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.content, options.update(height=None), pad=False)
        room = options.max_height
        missing = 0 if len(lines) <= room else len(lines) - room + 1
        for line in lines[: len(lines) - missing]:
            yield from line
            yield Segment.line()
        if missing:
            text = f"... and {missing} more lines: `pairgate status` shows all"
            yield Segment(text[: options.max_width])


def screen(address: str, found: Status) -> Group:
    """The status for people."""
    problems, pair = [words_of(each, found.at) for each in problems_of(found)], found.pair
    told = "\n".join(text for text, _ in problems)
    parts: list[RenderableType] = [_head(address, found, bool(problems))]
    if pair is not None:
        parts.append(Facts(_backlog(pair, found.at)))
    parts += _problems(problems)
    if pair is not None:
        parts += _troubled(pair, found.at, told)
        parts.append(Facts(_pair(pair, found.at, told)))
    parts += _abilities(found.namespaces, found.at, told)
    parts.append(Facts(_history(found)))
    for section, value in found.sections.items():
        parts += map(_line, section.lines(value))
    parts.append(Facts(map(_bill, found.namespaces)))
    return Group(*parts)


def _head(address: str, found: Status, in_trouble: bool) -> Text:
    up = span((found.at - found.started).total_seconds())
    well = ("needs attention", RED) if in_trouble else ("all is well", "green")
    return Text.assemble(f"{_kind(found)} at {address}, up {up}: ", well)


def _kind(found: Status) -> str:
    """The command of a process that its pair knows as no gateway."""
    known = () if found.pair is None else found.pair.processes
    here = next((each.name for each in known if each.here), SERVE)
    return "gateway" if here.startswith(SERVE) else here.partition(" ")[0]


def _backlog(pair: PairStatus, now: datetime) -> Iterator[Fact]:
    """The messages that wait, and whether they move, why not, or for how long."""
    backlog, progress = pair.backlog, progress_of(pair, now)
    as_of = "" if backlog.as_of is None else f" ({span((now - backlog.as_of).total_seconds())} ago)"
    about = "about " if backlog.counted else ""
    unknown = f": {backlog.unknown}" if backlog.unknown else ""
    depth = f"{about}{_depth(backlog.pending)}{unknown}"
    yield "backlog", f"{depth}{_age(backlog.oldest_age)}{as_of}"
    why = f": {progress.why}" if progress.why else ""
    left = "" if progress.seconds_left is None else f"; empty in {span(progress.seconds_left)}"
    yield "way home", f"{progress.state.value.replace('-', ' ')}{why}{left}"
    if backlog.by_entity:
        texts = [f"{name} {count}" for name, count in backlog.by_entity.items()]
        yield "", f"by entity: {_first(texts, MOST_WAITING)}"


def _depth(messages: int | None) -> str:
    return f"{'an unknown number of' if messages is None else messages} messages wait"


def _age(oldest: float | None) -> str:
    return "" if oldest is None else f", the oldest for {span(oldest)}"


def _problems(problems: Iterable[tuple[str, str]]) -> list[RenderableType]:
    """The problems; those with the same remedy have it once, below them."""
    by_remedy: dict[str, list[str]] = {}
    for problem, remedy in problems:
        by_remedy.setdefault(remedy, []).append(problem)
    facts: list[Fact] = []
    for remedy, found in by_remedy.items():
        facts += [(Text("!", RED), Text(printable(each), RED)) for each in found]
        facts += [("", f"-> {remedy}")] if remedy else []
    return [Facts(facts, 1)] if facts else []


def _troubled(pair: PairStatus, now: datetime, told: str) -> list[RenderableType]:
    """The entities that aren't on the primary: one line for all with one state and reason."""
    groups: dict[tuple[str, str], list[TroubledEntity]] = {}
    for each in pair.entities:
        alike = each.state, each.reason.replace(each.entity, "")
        groups.setdefault(alike, []).append(each)
    shown = list(groups.values())[:MOST_GROUPS]
    facts: list[Fact] = [
        (Text(found[0].state, STYLES.get(found[0].state, "")), _group(found, now, told))
        for found in shown
    ]
    more = sum(pair.states.values()) - sum(map(len, shown))
    facts += [("", f"and {more} more entities")] if more > 0 else []
    return [Text("not on the primary"), Facts(facts, 10)] if facts else []


def _group(found: Sequence[TroubledEntity], now: datetime, told: str) -> str:
    ages = sorted((now - each.since).total_seconds() for each in found)
    lasts = " to ".join(dict.fromkeys((span(ages[0]), span(ages[-1]))))
    waiting = [each.waiting for each in found if each.waiting is not None]
    waits = f"{sum(waiting)} wait, " if len(waiting) == len(found) else ""
    probes = [each.next_probe for each in found if each.next_probe is not None]
    probe = f", next probe in {span(min(probes))}" if probes else ""
    reason = "" if found[0].reason in told else f": {found[0].reason}"
    names = _first([each.entity for each in found], MOST_NAMED)
    named = f"{len(found)} entities ({names})" if len(found) > 1 else names
    diverted = sum(each.diverted for each in found)
    return f"{named} for {lasts}: {waits}{diverted} diverted{probe}{reason}"


def _first(names: Sequence[str], most: int) -> str:
    more = len(names) - most
    return f"{', '.join(names[:most])}{f' and {more} more' if more > 0 else ''}"


def _pair(pair: PairStatus, now: datetime, told: str) -> Iterator[Fact]:
    backlog = pair.backlog
    yield from _dead_letters("backlog", backlog.dead_letters, told)
    if pair.spool is not None:
        yield "spool", _spool(pair.spool)
        yield from _dead_letters("spool", pair.spool.dead_letters, told)
    usable = "not known yet how many" if backlog.usable is None else str(backlog.usable)
    yield "queues", f"{usable} of {backlog.wanted} backlog queues are usable"
    yield "syphon", _syphon(pair, now)
    if (syphons := syphons_text(pair, now)) != progress_of(pair, now).why:
        yield "syphons", syphons
    for text in pair.process_texts:
        yield "elsewhere", text
    for place in pair.not_reached:
        yield "orders", f"not reached: {place}"
    if pair.reach_unknown and (pair.pins or pair.syphon.pauses):
        yield "orders", f"not known which other processes follow them: {pair.reach_unknown}"
    sends = ", ".join(
        f"{each.messages} {each.outcome}"
        f"{f' by {each.accepted_by}' if each.accepted_by else f' ({each.error})'}"
        for each in pair.sends
    )
    yield "sends", f"{sends or 'none yet'}; {pair.inflight} bytes in flight"
    if twice := _possibly_twice(pair):
        yield "twice", f"messages that may be, since the start of each process: {twice}"
    if pair.paused:
        yield "busy", Text(f"sends to {pair.paused} entities pause", style="yellow")


def _possibly_twice(pair: PairStatus) -> str:
    """The messages that may have been sent twice, by process; none: each process tells of none."""
    here = sum(pair.possibly_twice.values())
    counts = {each.name: each.possibly_twice for each in pair.processes if not each.here}
    by_process = {"this process": here, **counts}
    known = (f"{name} {count}" for name, count in by_process.items() if count)
    unknown = (f"{name} not told" for name, count in by_process.items() if count is None)
    return ", ".join((*known, *unknown))


def _dead_letters(place: str, dead: DeadLetters, told: str) -> Iterator[Fact]:
    if dead.messages and dead.text not in told:
        yield "", Text(f"dead letters of the {place}: {dead.text}", style="yellow")


def _history(found: Status) -> Iterator[Fact]:
    """The alarms of the last ten minutes that are over."""
    for each in found.alarms:
        if each.over:
            ago = span((found.at - each.last).total_seconds())
            yield "over", f"{each.event}, {ago} ago: {each.text}"


def _spool(spool: SpoolStatus) -> str:
    free = "unknown" if spool.free_bytes is None else f"{spool.free_bytes // MIB} MiB"
    return (
        f"{_depth(spool.pending)}{_age(spool.oldest_age)}; {spool.rate_in:.1f}/s in,"
        f" {spool.rate_out:.1f}/s out; room for {free}"
    )


def _syphon(pair: PairStatus, now: datetime) -> str:
    syphon, last = pair.syphon, ""
    if syphon.last_moved is not None:
        last = f", last {span((now - syphon.last_moved).total_seconds())} ago"
    here = "" if syphon.running else " (none runs in this process)"
    return (
        f"{syphon.moved} messages moved{last}, {syphon.rate:.1f}/s in the last {RATE_SECONDS:g} s;"
        f" {syphon.backing_off} entities are backed off, {syphon.dead_lettered} dead letters{here}"
    )


def _abilities(
    namespaces: Sequence[NamespaceStatus], now: datetime, told: str
) -> list[RenderableType]:
    """The abilities of each namespace, with dates; below them the errors that aren't told above."""
    known = [each for each in namespaces if each.abilities]
    if not known:
        return []
    table = _table("namespace", *(each.value for each in Ability))
    errors: list[Fact] = []
    for namespace in known:
        cells = [namespace.abilities.get(each.value, AbilityStatus()) for each in Ability]
        table.add_row(Text(printable(namespace.name)), *(_ability(each, now) for each in cells))
        errors += _errors(namespace, now, told)
    return [table, Facts(errors)]


def _ability(ability: AbilityStatus, now: datetime) -> Text:
    since = "" if ability.since is None else f" {span((now - ability.since).total_seconds())}"
    return Text(f"{ability.state.value}{since}", style=ANSWERS[ability.state])


def _errors(namespace: NamespaceStatus, now: datetime, told: str) -> Iterator[Fact]:
    """The last errors of abilities that don't work, each with its date and remedy."""
    abilities: dict[tuple[str, str | None], list[str]] = {}
    failed: dict[tuple[str, str | None], AbilityStatus] = {}
    for name, each in namespace.abilities.items():
        if each.state is not AbilityState.NO or each.error is None or each.error in told:
            continue
        abilities.setdefault((each.error, each.remedy), []).append(name)
        failed[each.error, each.remedy] = each
    for (error, remedy), names in abilities.items():
        one = failed[error, remedy]
        ago = "" if one.failed is None else f" {span((now - one.failed).total_seconds())} ago"
        text = f"{namespace.name}, {', '.join(names)}{ago}: {error}; {remedy}"
        yield "", Text(printable(text), style=ANSWERS[one.state])


def _table(*heading: str) -> Table:
    """A table with these columns, whose cells and heading wrap."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for each in heading:
        table.add_column(each, overflow="fold")
    return table


def _line(line: Line) -> RenderableType:
    if isinstance(line, str):
        return Text(printable(line))
    heading, *rows = line
    table = _table(*heading)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _bill(namespace: NamespaceStatus) -> Fact:
    """The operations on a namespace that a cloud would bill."""
    usage = namespace.usage
    kinds = [f"{usage.operations[o]} {o.value}" for o in Operation if usage.operations.get(o)]
    of_them = f" ({', '.join(kinds)})" if kinds else ""
    return (
        "bill",
        f"{namespace.name} ({namespace.role}, {namespace.kind}): {usage.total} operations{of_them},"
        f" {_figure(usage.per_message, 2)} per message, {_figure(usage.per_idle_day, 0)} per idle"
        " day",
    )


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
