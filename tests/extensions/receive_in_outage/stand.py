"""A pair whose `orders` are received from at both namespaces."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from gateway.domain.backlog import own_queue
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unreachable
from gateway.domain.message import Complete, Delivery, Message
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogOpening
from gateway.extensions.receive_in_outage.broker import TwoSidedBroker
from gateway.extensions.receive_in_outage.options import RECEIVE_IN_OUTAGE
from gateway.extensions.receive_in_outage.queues import OWN_PROPERTIES
from gateway.moments import Moments
from gateway.pairing.options import SyphonOptions
from gateway.pairing.pair import Pair
from gateway.ports import Receiver
from tests.pairing.harness import LABEL, ORDERS, Harness, refuse

OWN: Final = own_queue(LABEL, ORDERS)
AWAY: Final = refuse(Unreachable, "refused")


@attrs.define(eq=False, kw_only=True)
class Stand:
    """Two namespaces, a pair before them, and its clients' broker."""

    harness: Harness
    pair: Pair
    broker: TwoSidedBroker
    done: list[int]  # messages that were completed at the backlog

    @classmethod
    async def make(cls, harness: Harness, *, has_queue: bool = True, **options: Any) -> "Stand":
        if has_queue:
            await harness.secondary.store.create_queue(OWN, OWN_PROPERTIES)
        options = {"receive_in_outage": ("orders",), **options}
        pair = await harness.pair(failover_interval=0.0, **options)
        done = list[int]()
        return cls(harness=harness, pair=pair, broker=two_sided(harness, pair, done), done=done)

    def lose_primary(self) -> None:
        """Let the primary refuse everything."""
        self.harness.primary.fail(AWAY)

    async def send(self, *messages: Message, entity: EntityPath = ORDERS) -> None:
        await self.broker.send(entity, messages)

    async def backlog(self) -> list[Any]:
        """The ids of the messages in the entity's own queue."""
        return await self.harness.secondary.ids(OWN)


def two_sided(harness: Harness, pair: Pair, done: list[int]) -> TwoSidedBroker:
    """A gateway's broker for clients, over that pair."""
    to_backlog = pair.broker.ways.to_backlog
    return TwoSidedBroker(
        broker=pair.broker,
        secondary=harness.secondary.broker,
        label=LABEL,
        options=pair.broker.ways.options.of(RECEIVE_IN_OUTAGE),
        entity_cache=pair.entity_cache,
        opening=BacklogOpening(
            envelope=to_backlog.envelope,
            destination=pair.destination,
            moments=Moments(harness.clock),
            options=SyphonOptions(),
            observer=harness.events,
            done=partial(_record, done),
        ),
        rng=random.Random(0),
        clock=harness.clock,
    )


def _record(done: list[int], _entity: EntityPath, messages: int) -> None:
    done.append(messages)


async def take(receiver: Receiver, number: int, seconds: float = 5.0) -> Sequence[Delivery]:
    """Receive that many messages."""
    found = list[Delivery]()
    with trio.fail_after(seconds):
        while len(found) < number:
            found += await receiver.receive(number - len(found))
    return found


async def complete(receiver: Receiver, number: int) -> list[Any]:
    """Receive and complete that many messages; return their ids."""
    found = await take(receiver, number)
    for each in found:
        await receiver.settle(each, Complete())
    return [each.message.message_id for each in found]
