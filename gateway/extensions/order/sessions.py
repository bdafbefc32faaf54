"""Queues with sessions that aren't `ordered`: an outage breaks the order of their messages."""

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import ALL, KEY
from gateway.domain.status.sections import Line, Section
from gateway.extensions.order.keys import is_ordered
from gateway.pairing.entity_cache import MOST_LISTED, EntityCache

_SHOWN: Final = 5  # a line has room for as many names


@attrs.frozen(kw_only=True)
class UnorderedQueue:
    """A queue of the primary that requires sessions, and whose order isn't kept."""

    queue: str = field(metadata=KEY)


def _lines(queues: Sequence[UnorderedQueue]) -> Iterator[Line]:
    if queues:
        yield f"order    {sentence([each.queue for each in queues])}"


UNORDERED: Final = Section[tuple[UnorderedQueue, ...]](
    path="pair.unordered",
    kind=tuple[UnorderedQueue, ...],
    missing=(),
    metadata=ALL,
    lines=_lines,
)


def unordered(cache: EntityCache, patterns: Sequence[str]) -> tuple[UnorderedQueue, ...]:
    """The ones among the entities that were sent to, and that the primary has described."""
    names = [
        str(known.entity)
        for known in cache.all()
        if known.requires_session and not is_ordered(known.entity, patterns)
    ]
    return tuple(UnorderedQueue(queue=name) for name in sorted(names)[:MOST_LISTED])


def sentence(names: Sequence[str]) -> str:
    """The words about these queues."""
    shown, more = ", ".join(names[:_SHOWN]), len(names) - _SHOWN
    who = f"{shown} and {more} more" if more > 0 else shown
    verb = "requires sessions and isn't" if len(names) == 1 else "require sessions and aren't"
    return f"{who} {verb} in `ordered` of [pairing]: an outage breaks the order of sessions there"
