"""The front ends of the simulation are the real ones, and so are their clients."""

import random
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.brokers.memory import MemoryBroker
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown
from gateway.domain.history import fingerprint
from gateway.domain.message import Message
from gateway.passing import PassesOn
from gateway.testing.clocks import VirtualClock
from gateway.testing.sim.endpoint import Endpoint, client_of
from gateway.testing.sim.names import Names
from gateway.testing.sim.network import Network
from gateway.testing.sim.scenario import ENTITIES, ClockStep, Front, Parts
from gateway.testing.sim.seeds import FRONTS, draw, draw_parts
from gateway.testing.sim.world import run_world

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
class Deaf(PassesOn):
    """Takes what is sent, and never answers."""

    inner: MemoryBroker

    inner_name = "the namespace"

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


@pytest.fixture(params=FRONTS, ids=lambda front: front.value)
def installation(request, nursery):
    return Installation(request.param, nursery)


async def test_what_a_client_sends_arrives_as_it_was(installation):
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


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.value)
def test_a_seed_repeats_its_history_byte_by_byte(front):
    seed = next(seed for seed in range(100) if draw_parts(seed).front is front)

    first, second = run_world(seed), run_world(seed)

    assert first.trace == second.trace
    assert first.records == second.records
    assert first.seen[f"acked over {front.value}"] > 0


@pytest.mark.parametrize(
    ("front", "seconds"),
    [(None, 33.0), (Front.REST, 33.0), (Front.AMQP, 63.0), (Front.STORAGE_QUEUE, 65.0)],
)
def test_a_life_may_begin_later_where_a_front_end_lets_a_send_wait(front, seconds):
    scenario = attrs.evolve(draw(6270220), parts=Parts(front=front))  # it waits for 30 s, and 3 s

    assert scenario.longest_way == seconds


def test_where_clocks_are_set_a_life_is_counted_from_its_attempt():
    step = ClockStep(process="primary", ahead=1.0, drift=0.0, at=20.0, back=30.0)
    scenario = attrs.evolve(draw(6270220), parts=Parts(front=Front.AMQP), clock_steps=(step,))

    assert scenario.longest_way == 33.0


def test_storage_queue_is_sent_what_it_has_names_for():
    for seed in range(100):
        scenario = draw(seed)
        short = scenario.parts.front is Front.STORAGE_QUEUE
        assert scenario.entities == (ENTITIES[:2] if short else ENTITIES)
