"""The sections of the status that the core doesn't know: one list, with their words."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from gateway.domain.status.figures import bounded
from gateway.domain.status.listening import MOST_QUEUES, PoolStatus, QueueStatus, Wake
from gateway.domain.status.sections import Line, Readings, Section
from gateway.extensions.listing import parts
from gateway.wire.pairgate.advice import span, wake_text


def _wake_lines(wake: Wake | None) -> Iterator[Line]:
    if wake is not None:
        yield f"listener {wake_text(wake)}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _pool_lines(pools: Sequence[PoolStatus]) -> Iterator[Line]:
    if pools:
        yield [
            ("listener", "waiting", "oldest", "processes", "handling", "handled"),
            *(
                (
                    each.listener,
                    _number(each.depth),
                    "-" if each.oldest_age is None else span(each.oldest_age),
                    f"{each.processes} of {each.wanted}",
                    str(each.handling),
                    str(each.handled),
                )
                for each in pools
            ),
        ]


def _queue_lines(queues: Sequence[QueueStatus]) -> Iterator[Line]:
    if queues:
        results = ("completed", "failed", "poisoned", "too_late")
        yield [
            ("queue", "waiting", "tasks", "locked", "completed", "failed", "poisoned", "too late"),
            *(
                (
                    each.queue,
                    _number(each.depth),
                    f"{each.active_tasks} of {each.total_tasks}",
                    *(str(getattr(each, name)) for name in ("locked", *results)),
                )
                for each in queues
            ),
        ]


WAKE: Final = Section[Wake | None](path="wake", kind=Wake | None, missing=None, lines=_wake_lines)
QUEUES: Final = Section[tuple[QueueStatus, ...]](
    path="queues",
    kind=tuple[QueueStatus, ...],
    missing=(),
    metadata=bounded(MOST_QUEUES),
    lines=_queue_lines,
)
POOLS: Final = Section[tuple[PoolStatus, ...]](
    path="pools", kind=tuple[PoolStatus, ...], missing=(), lines=_pool_lines
)
SECTIONS: Final[tuple[Section[Any], ...]] = (*parts("sections"), WAKE, QUEUES, POOLS)


def readings(*own: Readings) -> Readings:
    """The readings of all sections of a process; `own` are those that its parts have."""
    found: dict[Section[Any], Any] = {each: partial(_missing, each) for each in SECTIONS}
    for each in own:
        found |= each
    return found


def _missing(section: Section[Any]) -> Any:
    return section.missing
