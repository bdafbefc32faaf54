"""The front ends of the simulation are the real ones, and so are their clients."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.checker.operations import fingerprint
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown
from gateway.domain.message import Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.simulation.endpoint import Endpoint, client_of
from tests.simulation.names import Names
from tests.simulation.network import Network
from tests.simulation.scenario import ENTITIES, ClockStep, Front, Parts
from tests.simulation.seeds import BY_RABBITMQ, draw, draw_parts
from tests.simulation.world import run_world

ORDERS, INVOICES, _ = ENTITIES
MESSAGE = Message(
    message_id="0-1-0",
    body=b"\x00 no text",
    properties={"number": 7, "text": "ä"},
    session_id="session",
    subject="label",
    time_to_live=timedelta(seconds=90),
)


@attrs.define(eq=False)
class Deaf(ForwardingBroker):
    """Takes what is sent, and never answers."""

    inner: MemoryBroker

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)
        await trio.sleep_forever()


@attrs.define(eq=False)
class Installation:
    front: Front
    nursery: trio.Nursery
    clock: VirtualClock = attrs.field(factory=VirtualClock)
    rng: random.Random = attrs.field(factory=lambda: random.Random(1))
    names: Names = attrs.field(factory=Names)
    broker: MemoryBroker = attrs.field(init=False)
    network: Network = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.broker = MemoryBroker(self.clock, self.rng)
        self.network = Network(rng=self.rng, breaking=0.0, until=0.0, on_break=lambda: None)

    async def start(self, deaf=False):
        for entity in ENTITIES:
            await self.broker.create_queue(entity, QueueProperties())
        endpoint = Endpoint(
            front=self.front,
            broker=Deaf(self.broker) if deaf else self.broker,
            clock=self.clock,
            rng=self.rng,
            send_timeout=10.0,
            note_put=self.names.note_put,
        )
        await self.nursery.start(self.network.run)
        await self.nursery.start(endpoint.run)
        self.network.serve = endpoint.serve

    async def client(self):
        client = client_of(self.front, self.network, clock=self.clock, rng=self.rng)
        await self.nursery.start(client.run)
        return client

    async def arrived(self, entity):
        return [each.message for each in await self.broker.peek(entity, limit=100)]


@pytest.fixture(params=Front, ids=lambda front: front.value)
def installation(request, nursery):
    return Installation(request.param, nursery)


async def test_a_message_of_a_client_arrives_as_it_was(installation):
    await installation.start()
    client = await installation.client()

    await client.send(INVOICES, [MESSAGE])

    [message] = await installation.arrived(INVOICES)
    names = installation.names
    assert names.of(message) == "0-1-0"
    assert fingerprint(names.read(message)) == fingerprint(MESSAGE)


async def test_each_client_has_a_connection_of_its_own(installation):
    await installation.start()
    served = []
    serve = installation.network.serve

    async def counted(stream):
        served.append(stream)
        await serve(stream)

    installation.network.serve = counted
    for _ in range(2):
        client = await installation.client()
        for number in range(2):
            await client.send(ORDERS, [attrs.evolve(MESSAGE, message_id=f"0-{number}-0")])

    assert len(served) == 2


async def test_without_a_gateway_nothing_was_sent(installation):
    client = await installation.client()
    await installation.nursery.start(installation.network.run)

    with pytest.raises(BrokerError) as caught:
        await client.send(ORDERS, [MESSAGE])

    assert caught.value.outcome is Outcome.NOT_SENT


async def test_where_the_gateway_has_no_answer_nobody_knows(installation, autojump_clock):
    await installation.start(deaf=True)
    client = await installation.client()

    with pytest.raises(OutcomeUnknown):
        await client.send(ORDERS, [MESSAGE])

    assert await installation.arrived(ORDERS) != []


@pytest.mark.parametrize("front", Front, ids=lambda front: front.value)
def test_a_seed_repeats_its_history_byte_by_byte(front):
    seed = next((seed for seed in range(100) if draw_parts(seed).front is front), BY_RABBITMQ)

    first, second = run_world(seed), run_world(seed)

    assert first.trace == second.trace
    assert first.records == second.records
    assert first.seen[f"acked over {front.value}"] > 0


@pytest.mark.parametrize("stepped", [False, True], ids=["", "clocks"])
@pytest.mark.parametrize(
    ("front", "seconds"),
    [
        (None, 0.1),
        (Front.REST, 0.1),
        (Front.AMQP, 31.1),
        (Front.STORAGE_QUEUE, 32.1),
        (Front.RABBITMQ, 30.1),
    ],
)
def test_a_life_may_begin_later_only_where_a_front_end_lets_a_send_wait(front, seconds, stepped):
    step = ClockStep(process="primary", ahead=1.0, drift=0.0, at=20.0, back=30.0)
    scenario = attrs.evolve(  # a send may wait for 30 s
        draw(6270220),
        parts=Parts(front=front),
        latency=0.0,
        clock_steps=(step,) if stepped else (),
    )

    assert scenario.longest_way == pytest.approx(seconds)


def test_a_life_may_begin_with_a_send_that_went_along_with_its_own():
    scenario = attrs.evolve(draw(6270220), parts=Parts(ordered=True), latency=0.0)

    assert scenario.longest_way == pytest.approx(0.2)


def test_storage_queue_is_sent_what_it_has_names_for():
    for seed in range(100):
        scenario = draw(seed)
        short = scenario.parts.front is Front.STORAGE_QUEUE
        assert scenario.entities == (ENTITIES[:2] if short else ENTITIES)
