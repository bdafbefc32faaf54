"""
The reads of bodies of one receiver, each in a task of its own.

A receive may have a short deadline: a drain, a look of an endpoint into an empty queue. If its read
ended with it, a store that takes longer than that would never deliver. So a read goes on without
its receive, and the next receive of that message waits for the same one. The claim check limits the
duration of a read.
"""

from collections.abc import Awaitable, Callable

import attrs
import trio

from gateway.brokers.task_scope import TaskScope
from gateway.domain.errors import BrokerError
from gateway.domain.message import Message
from gateway.extensions.claims.claim import ClaimCorrupt, ClaimMissing


@attrs.define(eq=False)
class BodyRead:
    """
    A read that has begun. It is as long in memory as its message is held.

    A wait for `over` that is cancelled leaves the read under way.
    """

    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _found: Message | None = attrs.field(default=None, init=False)
    _error: BrokerError | ClaimMissing | ClaimCorrupt | None = attrs.field(default=None, init=False)

    async def run(self, read: Callable[[], Awaitable[Message]]) -> None:
        """Read, and keep the message or the error. Cancelled: nobody may wait any more."""
        try:
            self._found = await read()
        except (BrokerError, ClaimMissing, ClaimCorrupt) as error:
            self._error = error
        self.over.set()

    def message(self) -> Message:
        """
        The message with its body, once the read is over.

        Raises:
            BrokerError, ClaimMissing, ClaimCorrupt: as the read.
        """
        if self._error is not None:
            raise self._error
        assert self._found is not None, "a read ends with a message or with an error"
        return self._found


class BodyReads(TaskScope):
    """A scope; at its end the reads that are under way are cancelled."""

    def begin(self, read: Callable[[], Awaitable[Message]]) -> BodyRead:
        """Begin a read, in a task of its own."""
        begun = BodyRead()
        self.nursery.start_soon(begun.run, read)
        return begun
