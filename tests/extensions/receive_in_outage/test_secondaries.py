"""Each kind of secondary gives receivers what was diverted to it, and settles what they settle."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.capabilities import SettlesMany
from gateway.capabilities.settling import settle_one
from gateway.domain.backlog import BacklogQueue, own_queue, placed
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import EntityExists, NotSupported, Unreachable
from gateway.domain.message import Abandon, Complete, DeadLetter, Message, ReceiveMode
from gateway.extensions.receive_in_outage.backlog_receiver import BacklogOpening
from gateway.extensions.receive_in_outage.broker import TwoSidedBroker
from gateway.extensions.receive_in_outage.options import ReceiveInOutageOptions
from gateway.extensions.receive_in_outage.queues import OWN_PROPERTIES, SESSIONS_PROPERTIES
from gateway.moments import Moments
from gateway.offering import required
from gateway.pairing.entity_cache import EntityCache
from gateway.pairing.options import SyphonOptions
from gateway.pairing.syphon.destination import Destination
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from tests.brokers.conftest import azurites, elsewhere, rabbits
from tests.brokers.elsewhere import Elsewhere
from tests.brokers.kinds import KINDS, BrokerKind, Place, real_date
from tests.brokers.rabbitmq.nodes import Nodes
from tests.brokers.storage_queue.azurites import Azurites
from tests.extensions.receive_in_outage.stand import OWN, take
from tests.harness.faults import Refuse
from tests.harness.faulty_sessions import FaultySessionsBroker
from tests.pairing.harness import LABEL, ORDERS, Events, envelope, message

__all__ = ["azurites", "elsewhere", "rabbits"]

NAMES: Final = ("embedded", "servicebus+http", "servicebus", "rabbitmq", "storage-queue, Azurite")
PLAIN: Final = BacklogQueue(path=OWN, properties=OWN_PROPERTIES)
IN_SESSIONS: Final = BacklogQueue(
    path=own_queue(LABEL, ORDERS, sessions=True), properties=SESSIONS_PROPERTIES
)
WITH_SESSIONS: Final = ("embedded", "servicebus")
SECONDARIES: Final = [kind for kind in KINDS if kind.name in NAMES]


@asynccontextmanager
async def gateway(secondary: Broker, queue: BacklogQueue) -> AsyncIterator[TwoSidedBroker]:
    """A gateway whose primary is away."""
    store = MemoryBroker(real_date, random.Random(0))
    await store.create_queue(ORDERS, QueueProperties())
    primary = FaultySessionsBroker(
        inner=store, fault=lambda *_: Refuse(lambda: Unreachable("refused"))
    )
    with suppress(EntityExists):
        await secondary.create_queue(queue.path, queue.properties)
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        yield TwoSidedBroker(
            broker=primary,
            secondary=secondary,
            label=LABEL,
            options=ReceiveInOutageOptions(receive_in_outage=("orders",)),
            entity_cache=EntityCache(primary=primary),
            opening=BacklogOpening(
                envelope=envelope(),
                destination=Destination(primary=primary, observer=Events()),
                moments=Moments(real_date),
                options=SyphonOptions(),
                observer=Events(),
                done=lambda *_: None,
            ),
            rng=random.Random(0),
            clock=real_date,
        )
        nursery.cancel_scope.cancel()


async def divert(secondary: Broker, *messages: Message, queue: EntityPath = OWN) -> None:
    wrapped = [
        placed(
            envelope().wrap(each, ORDERS, attempt=f"attempt {number}", now=real_date()),
            each,
            queue,
        )
        for number, each in enumerate(messages)
    ]
    await secondary.send(queue, wrapped)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECONDARIES, ids=lambda kind: kind.name)
async def test_a_secondary_gives_what_was_diverted_and_settles_it(
    kind: BrokerKind,
    tmp_path: Path,
    elsewhere: Elsewhere,
    rabbits: Nodes,
    azurites: Azurites,
) -> None:
    sent = [message(str(number), properties={"own": number}, subject="s") for number in range(4)]
    with trio.fail_after(60.0):
        async with (
            kind.open(Place(tmp_path, elsewhere, rabbits, azurites)) as secondary,
            gateway(secondary, PLAIN) as broker,
            broker.open_receiver(ORDERS) as receiver,
        ):
            await divert(secondary, *sent)
            found = await take(receiver, 4, seconds=20.0)
            assert sorted((each.message for each in found), key=id_of) == sent
            by_id = {id_of(each.message): each for each in found}
            with suppress(NotSupported):  # RabbitMQ has no locks that are renewed
                await receiver.renew(by_id["0"])
            await receiver.settle(by_id["0"], Complete())
            await receiver.settle(by_id["1"], DeadLetter(reason="bad", description="why"))
            await receiver.settle(by_id["2"], Abandon())
            [again] = await take(receiver, 1, seconds=20.0)
            assert again.message == sent[2]
            assert again.delivery_count == 2
            assert await settle_one(receiver, by_id["3"], Complete(), 20.0) is None
            await receiver.settle(again, Complete())

            with trio.move_on_after(2.0):
                pytest.fail(f"it comes again: {await receiver.receive(1)}")
            async with secondary.open_receiver(OWN.dead_letter, ReceiveMode.PEEK_LOCK) as dead:
                [letter] = await dead.receive(1)
            assert letter.message.message_id == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [each for each in SECONDARIES if each.name in WITH_SESSIONS], ids=lambda kind: kind.name
)
async def test_a_secondary_with_sessions_gives_a_session_in_its_order(
    kind: BrokerKind,
    tmp_path: Path,
    elsewhere: Elsewhere,
    rabbits: Nodes,
    azurites: Azurites,
) -> None:
    sent = [message(str(number), session_id="s") for number in range(3)]
    with trio.fail_after(60.0):
        async with (
            kind.open(Place(tmp_path, elsewhere, rabbits, azurites)) as secondary,
            gateway(secondary, IN_SESSIONS) as broker,
        ):
            await divert(secondary, *sent, queue=IN_SESSIONS.path)
            async with broker.open_session(ORDERS, None) as session:
                found = await take(session, 3, seconds=20.0)
                await session.renew_session()
                await session.settle(found[0], Complete())
                await session.settle(found[1], Abandon())
            async with broker.open_session(ORDERS, "s") as session:
                again = await take(session, 2, seconds=20.0)
                verdicts = await required(session, SettlesMany).settle_many(
                    [(each, Complete()) for each in again]
                )
                with trio.move_on_after(1.0):
                    pytest.fail(f"it comes again: {await session.receive(1)}")

            assert [each.message for each in found] == sent
            assert [each.message for each in again] == sent[1:]
            assert verdicts == [None, None]


def id_of(message: Message) -> str:
    return str(message.message_id)
