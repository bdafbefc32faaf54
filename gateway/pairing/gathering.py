"""
Gathers sends of several clients to one entity: they go to the pair in one call.

Most of a send's cost arises once for each call: the decision where to send, the attempt with its
deadline, and the request to the namespace. While an entity has a send under way, the next send lets
all ready tasks run once and takes along the sends that have arrived by then. So no send waits for a
timer or for the answer to another send, and many share a call under load.

    client 1 ── send ────────────────────────────────▶ pair      nothing else is under way: at once
    client 2 ── send ── one turn of the scheduler ─┬──▶ pair      one call, a verdict for each
    client 3 ── send ──────────────────────────────┘
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import ClassVar, Final

import attrs
import trio

from gateway.capabilities import (
    BoundsSends,
    EnlistsSchedules,
    SendsMany,
    SendsTogether,
    Transacts,
)
from gateway.deadlines import client_deadline
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy, Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import offered
from gateway.pairing.broker import PairedBroker
from gateway.ports import Broker

# The limits of one call: a send that shares it waits for little more than itself. No send waits for
# another to come. benchmarks/results/2026-11-25-http.md has what the sharing saves.
MOST_BYTES: Final = 256 * 1024  # of the bodies in one call
MOST_SENDS: Final = 64  # in one call
SMALL: Final = 64 * 1024  # bytes of the bodies of a send that may share its call


@attrs.define(eq=False)
class _SharedCall:
    """Sends that share a call. The first one is its leader, whose task makes the call."""

    batches: list[Sequence[Message]]
    size: int  # bytes of the bodies
    done: trio.Event = attrs.field(factory=trio.Event)
    verdicts: Sequence[AcceptedBy | BrokerError] = ()
    # The verdict of all sends, if the leader ends before it has their own verdicts.
    failure: BrokerError = attrs.field(
        factory=lambda: Unavailable("the gateway is shutting down: nothing was sent")
    )

    def has_room(self, size: int) -> bool:
        return len(self.batches) < MOST_SENDS and self.size + size <= MOST_BYTES

    def add(self, messages: Sequence[Message], size: int) -> int:
        """Add a send; return its number."""
        self.batches.append(messages)
        self.size += size
        return len(self.batches) - 1

    def result(self, number: int) -> AcceptedBy:
        """Return who has accepted that send, or raise its error."""
        verdict = self.verdicts[number] if self.verdicts else self.failure
        if isinstance(verdict, BrokerError):
            raise copy(verdict) from verdict  # each task raises its own exception
        return verdict


def _never() -> bool:
    return False


@attrs.define(eq=False, kw_only=True)
class GatheringBroker(ForwardingBroker):
    """
    The pair as a `Broker` that gathers small sends.

    A send with an earlier deadline than the pair's, or whose client gives its time, goes alone, as
    its deadline would be that of the others too. So do all sends to an ordered entity, and all
    while a namespace of the pair doesn't send batches together.
    """

    # `SendsMany` is passed on, too: its sends share a call already.
    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards | {
        BoundsSends,
        EnlistsSchedules,
        SendsMany,
        Transacts,
    }

    pair: PairedBroker
    namespaces: Sequence[Broker]  # of the pair
    _groups: dict[str, _SharedCall] = attrs.field(factory=dict, init=False)  # that still collect
    _under_way: dict[str, int] = attrs.field(factory=dict, init=False)  # calls, by entity
    # For each namespace without `SendsMany`: returns True if it sends batches together now.
    _together: Sequence[Callable[[], bool]] = attrs.field(init=False)

    @_together.default
    def _uncertain(self) -> Sequence[Callable[[], bool]]:
        found = []
        for each in self.namespaces:
            if offered(each, SendsMany) is None:
                together = offered(each, SendsTogether)
                found.append(_never if together is None else together.sends_together)
        return found

    @property
    def inner(self) -> Broker:
        return self.pair

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `send_diverting`."""
        await self.send_diverting(entity, messages)

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `PairedBroker.send_diverting`. If the task that leads a group is cancelled, the outcome
        is unknown for the others of its group, too.
        """
        key = entity.key
        others = self._under_way.get(key, 0)
        size = self._size_of(entity, messages) if others else 0
        if size is None:
            return await self.pair.send_diverting(entity, messages)
        group = self._groups.get(key)
        if group is not None and group.has_room(size):
            number = group.add(messages, size)
            await group.done.wait()
            return group.result(number)
        self._under_way[key] = others + 1
        try:
            if not others:
                return await self.pair.send_diverting(entity, messages)
            return await self._lead(entity, _SharedCall([messages], size))
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def _size_of(self, entity: EntityPath, messages: Sequence[Message]) -> int | None:
        """The bytes of the bodies; None: the send goes alone."""
        if self.pair.keeps_order(entity):
            return None
        size = 0
        for message in messages:
            if not isinstance(message.body, bytes):
                return None
            size += len(message.body)
        latest = trio.current_time() + self.pair.longest_send()
        own_time = client_deadline() is not None or trio.current_effective_deadline() < latest
        if size > SMALL or own_time:
            return None
        return size if all(together() for together in self._together) else None

    async def _lead(self, entity: EntityPath, group: _SharedCall) -> AcceptedBy:
        """Let others join the group, send it, and tell them; return as `send_diverting`."""
        self._groups[entity.key] = group
        try:
            try:
                await trio.lowlevel.checkpoint()  # other calls may join
            finally:
                if self._groups.get(entity.key) is group:
                    del self._groups[entity.key]
            group.failure = OutcomeUnknown(f"{entity}: the gateway was shut down")
            group.verdicts = await self.pair.send_each_diverting(entity, group.batches)
        finally:
            group.done.set()
        return group.result(0)
