"""Claims through a pair, which diverts and moves back the reference, unopened."""

import random

import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import Unavailable
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.extensions.claims import claim as claims
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from tests.brokers.pairs import pair_of, syphon_of
from tests.extensions.claims.harness import A_DAY, LARGE, ORDERS, Events, claimed, virtual_time
from tests.harness.claim_store import MemoryClaimStore
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, LoseAnswer, Operation, Refuse

pytestmark = virtual_time
HUGE = LARGE * 10  # above the limit of both namespaces


async def test_a_large_body_survives_a_failover_and_comes_back() -> None:
    clock, events = VirtualClock(), Events()
    options = LocalOptions(max_message_size=64 * 1024)
    async with (
        MemoryBroker(clock, random.Random(0), options) as plain,
        MemoryBroker(clock, random.Random(1), options) as secondary,
        trio.open_nursery() as nursery,
    ):
        await plain.create_queue(ORDERS, QueueProperties())
        primary = FaultyBroker(inner=plain)
        await nursery.start(primary.run)
        async with pair_of(primary, secondary, clock, failover_interval=0.0) as pair:
            store = MemoryClaimStore(clock)
            broker = claimed(pair.broker, store, clock, events)

            async def send(name: str) -> AcceptedBy:
                sent = [Message(message_id=name, body=HUGE)]
                return await send_accepted_by(broker, ORDERS, sent)

            accepted = [await send("healthy")]
            # The first attempt arrives without an answer: its copy will come twice.
            primary.fault = lambda operation, entity: (
                LoseAnswer() if operation is Operation.SEND else Refuse()
            )
            accepted += [await send("twice"), await send("diverted")]
            bodies = set(store.bodies)
            primary.fault = lambda operation, entity: None
            await nursery.start(syphon_of(primary, secondary, clock).run)

            found = []
            with trio.fail_after(A_DAY):
                async with broker.open_receiver(ORDERS) as receiver:
                    while len(found) < 4:
                        for delivery in await receiver.receive(10):
                            assert delivery.message.body == HUGE
                            assert not claims.RESERVED & delivery.message.properties.keys()
                            found.append(delivery.message.message_id)
                            await receiver.settle(delivery, Complete())
            nursery.cancel_scope.cancel()

    assert accepted == [AcceptedBy.PRIMARY, AcceptedBy.BACKLOG, AcceptedBy.BACKLOG]
    assert sorted(found) == ["diverted", "healthy", "twice", "twice"]
    assert len(bodies) == 3
    assert set(store.kept) == bodies | {f"{name}.done" for name in bodies}


async def test_a_message_that_neither_namespace_took_leaves_no_body() -> None:
    clock = VirtualClock()
    async with (
        MemoryBroker(clock, random.Random(0)) as plain,
        MemoryBroker(clock, random.Random(1)) as spare,
        trio.open_nursery() as nursery,
    ):
        await plain.create_queue(ORDERS, QueueProperties())
        primary, secondary = FaultyBroker(inner=plain), FaultyBroker(inner=spare)
        await nursery.start(primary.run)
        await nursery.start(secondary.run)
        async with pair_of(primary, secondary, clock, failover_interval=0.0) as pair:
            primary.fault = secondary.fault = lambda operation, entity: Refuse()
            store = MemoryClaimStore(clock)
            broker = claimed(pair.broker, store, clock, Events())
            try:
                await broker.send(ORDERS, [Message(message_id="m", body=LARGE)])
            except Unavailable:
                assert store.kept == {}
            else:
                raise AssertionError("nobody could have taken it")
            nursery.cancel_scope.cancel()
