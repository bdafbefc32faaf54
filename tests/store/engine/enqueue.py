"""Parts of the tests of enqueue that other tests need, too."""

from collections.abc import Sequence

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.message import Message
from gateway.store.engine.queue import Queue
from gateway.store.engine.records import Row, State
from tests.store.engine.queue import make


@attrs.define
class Way:
    """`Onward` and its targets: notes the number of forwards of each message."""

    to_sender: bool = False
    count: int = 1
    asked: list[int] = attrs.field(factory=list)
    arrived: list[tuple[Row, int]] = attrs.field(factory=list)

    def copies(self, row: Row, hops: int, now: Now) -> Sequence[tuple["Way", Row]]:
        self.asked.append(hops)
        return [(self, row)] * self.count

    def free_room(self, now: Now) -> None:
        """Nothing shares a quota."""

    def arrive(self, row: Row, hops: int, now: Now) -> None:
        self.arrived.append((row, hops))

    @property
    def hops(self) -> list[int]:
        return [hops for _, hops in self.arrived]


def forwarded(**fields: object) -> Row:
    plain = Row(sequence=77, number=7, state=State.ACTIVE, enqueued=0, size=10, content=Message())
    return attrs.evolve(plain, **fields)  # type: ignore[arg-type]


def leading(way: Way, **properties: object) -> Queue:
    queue = make(**properties)
    queue.lead(way, None)
    return queue
