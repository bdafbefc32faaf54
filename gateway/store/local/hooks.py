"""
The calls that a store of this process makes, besides storing; and the sequences of recently sent
messages by message id, in memory and bounded.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from gateway.domain.billing import Operation
from gateway.domain.bounded import Bounded
from gateway.domain.entity import EntityPath
from gateway.ports import Observer

MOST: Final = 100_000  # messages, per namespace
_LONGEST: Final = 128  # characters; longer ids aren't remembered


@attrs.define(eq=False)
class Recent:
    """Maps a message id to the sequence of the last message sent with it."""

    most: int = MOST
    _sequences: Bounded[tuple[str, str], int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sequences = Bounded(self.most)

    def record(self, queue: str, sent: Iterable[tuple[Any, int]]) -> None:
        """Remember the ids and sequences of messages sent to the queue with this key."""
        for message_id, sequence in sent:
            if isinstance(message_id, str) and len(message_id) <= _LONGEST:
                self._sequences[queue, message_id] = sequence

    def sequence_of(self, queue: str, message_id: str) -> int | None:
        return self._sequences.get((queue, message_id))


@attrs.frozen(kw_only=True)
class LocalHooks:
    """Called by a `LocalBroker`, which gets them when it is made; None: nobody needs it."""

    observer: Observer | None = None
    # With a queue's path whenever a message in it becomes available.
    announce: Callable[[EntityPath], None] | None = None
    heard: Callable[[Operation], None] | None = None  # with each operation
    recent: Recent | None = None  # for clients that name messages by id
