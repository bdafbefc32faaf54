"""
Publishes that go through the pair: those that the client's own channel upstream can't confirm.

The pair tries the primary over connections of its own, and the backlog, as for every protocol. The
message carries its content header as data, and to an exchange its `basic.publish`: nothing in them
acts before it is home.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Any, Final, Protocol

import attrs
import trio

from gateway.capabilities import send_each
from gateway.capabilities.sending import continued
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest, MessageError
from gateway.domain.failover import State
from gateway.domain.message import Message
from gateway.frontends.rabbitmq.channel import KeptPublish
from gateway.ports import Broker
from gateway.wire.rabbitmq.exchanges import exchange_in
from gateway.wire.rabbitmq.properties import message_as_given
from gateway.wire.rabbitmq.relayed import mandatory

_TOGETHER: Final = 100  # publishes of one call: as many as a batch of Service Bus's usual clients


Attempt = Any
"""An attempt on the primary, as the pair has it: only handed back."""


class WatchesEntities(Protocol):
    """The pair's view of its entities: `pairing.states.EntityStates`."""

    def state_of(self, entity: EntityPath) -> State: ...

    def begin(self, entity: EntityPath) -> Attempt: ...

    def sent(self, attempt: Attempt, *, late: bool = False) -> None: ...

    def slow(self, attempt: Attempt, *, is_silence: bool = True) -> None: ...

    def failed(self, attempt: Attempt, error: BrokerError) -> None: ...

    def release(self, attempt: Attempt) -> None: ...

    def probe_unanswered(self, probe: Attempt) -> None: ...


OnVerdict = Callable[[KeptPublish, BrokerError | None], None]


@attrs.define(eq=False, kw_only=True)
class PairSends:
    """
    The publishes of one client that the pair has: each entity's in their order, one call at a time.

    Queues of RabbitMQ whose names differ in case alone are two, and have calls of their own.
    """

    broker: Broker
    nursery: trio.Nursery
    _queues: dict[str, deque[KeptPublish]] = attrs.field(factory=dict, init=False)
    _done: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def has(self, entity: EntityPath) -> bool:
        """True if the pair has publishes of that entity, so that the next must follow them."""
        return entity.name in self._queues

    def add(self, entity: EntityPath, kept: KeptPublish, on_verdict: OnVerdict) -> None:
        """Send a publish after the earlier ones; `on_verdict` is called with its verdict."""
        queue = self._queues.get(entity.name)
        if queue is None:
            self._queues[entity.name] = deque([kept])
            self.nursery.start_soon(self._send, entity, on_verdict)
        else:
            queue.append(kept)

    async def wait_until_done(self) -> None:
        """Return when each publish has its verdict."""
        while self._queues:
            await self._done.park()

    async def _send(self, entity: EntityPath, on_verdict: OnVerdict) -> None:
        queue = self._queues[entity.name]
        try:
            while queue:
                some = _first(queue)
                for kept, verdict in zip(some, await self._verdicts(entity, some), strict=True):
                    on_verdict(kept, verdict)
                    queue.popleft()
        finally:
            del self._queues[entity.name]
            self._done.unpark_all()

    async def _verdicts(
        self, entity: EntityPath, publishes: Sequence[KeptPublish]
    ) -> Sequence[BrokerError | None]:
        verdicts: list[BrokerError | None] = [None] * len(publishes)
        batches: list[list[Message]] = []
        good: list[int] = []
        for index, kept in enumerate(publishes):
            try:
                batches.append([_message_of(kept)])
                good.append(index)
            except MessageError as error:
                verdicts[index] = InvalidRequest(str(error))
        with continued(in_doubt=publishes[0].in_doubt):
            found = await send_each(self.broker, entity, batches)
        for index, verdict in zip(good, found, strict=True):
            verdicts[index] = verdict
        return verdicts


def _message_of(kept: KeptPublish) -> Message:
    content = kept.content
    assert kept.entity is not None, "the pair has it by its entity"
    method: bytes | None = content.method.payload
    match exchange_in(kept.entity.name):
        case None:
            method = None
        case "":  # for a queue, which may be gone when the message comes home
            method = mandatory(content.method.payload)
    return message_as_given(content.header, content.body(), method)


def _first(queue: Sequence[KeptPublish]) -> Sequence[KeptPublish]:
    """The first publishes that one call sends: all in doubt, or none."""
    in_doubt = queue[0].in_doubt
    return list(islice(takewhile(lambda kept: kept.in_doubt == in_doubt, queue), _TOGETHER))


@attrs.define(eq=False)
class WireEvidence:
    """
    The evidence that a client's own wire gives the pair: for each entity one attempt at a time,
    which is answered with a confirm.
    """

    states: WatchesEntities
    _attempts: dict[EntityPath, tuple[Attempt, int]] = attrs.field(factory=dict, init=False)

    def written(self, entity: EntityPath) -> None:
        """A publish was written upstream."""
        attempt, under_way = self._attempts.get(entity, (None, 0))
        self._attempts[entity] = attempt or self.states.begin(entity), under_way + 1

    def confirmed(self, entity: EntityPath) -> None:
        """The broker has answered one of its publishes."""
        found = self._attempts.pop(entity, None)
        if found is None:
            return  # it was late, or its channel has ended
        attempt, under_way = found
        self.states.sent(attempt)
        if under_way > 1:
            self._attempts[entity] = self.states.begin(entity), under_way - 1

    def dropped(self, entity: EntityPath) -> None:
        """A publish ended without an answer, and through no fault of the entity."""
        if (found := self._attempts.pop(entity, None)) is not None:
            self.states.release(found[0])

    def silent(self, entity: EntityPath) -> None:
        """A publish has had no answer for long; its publishes go through the pair."""
        if (found := self._attempts.pop(entity, None)) is not None:
            self.states.slow(found[0])

    def lost(self, error: BrokerError) -> None:
        """The connection is lost, with all that was under way."""
        attempts, self._attempts = self._attempts, {}
        for attempt, _ in attempts.values():
            self.states.failed(attempt, error)
