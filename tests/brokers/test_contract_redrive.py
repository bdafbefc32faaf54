"""Dead letters of the backlog come back on every kind of namespace that has dead letters."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import attrs
import pytest
import trio

from gateway.app.runtime import Runtime
from gateway.domain import backlog
from gateway.domain.dead_letters import MALFORMED
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.message import DEAD_LETTER_REASON, Complete, DeadLetter, Message
from gateway.extensions.redrive.order import Redriven, RedriveOrder, Selection
from gateway.extensions.redrive.redrive import QueueRedrive, Redrive
from gateway.pairing.backlog import Rotation
from gateway.pairing.depth import BacklogDepth
from gateway.ports import Broker
from gateway.wire.amqp.message import encode_message, encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.brokers.kinds import BrokerKind, Capability, needs
from tests.harness.patience import PATIENCE
from tests.pairing.harness import Events

LABEL = "east"
QUEUE = backlog.queue_name(LABEL, 0)
ORDERS, PARKED = EntityPath("orders"), EntityPath("parked")
CODEC = Envelope(
    pair=LABEL,
    origin="gateway",
    keys=(EnvelopeKey(id="1", key=b"a key for tests"),),
    encode=encode_sorted,
    encryption=MessageEncryption(random.Random(0)),
)
ENCRYPTING = attrs.evolve(CODEC, encrypts=True)
SENT = [
    Message(
        message_id=f"m{number}",
        body=b"body \x00 %d" % number,
        properties={"color": "red", "number": number},
        session_id="s",
        time_to_live=timedelta(days=1),
    )
    for number in range(5)
]


def now() -> datetime:
    return datetime.now(UTC)


def redrive_on(broker: Broker) -> Redrive:
    numbers = count()
    return Redrive(
        source=broker,
        label=LABEL,
        queues=1,
        envelope=CODEC,
        deducts=False,  # the virtual date of some kinds is far from ours
        clock=now,
        new_id=lambda: f"id-{next(numbers)}",
        observer=Events(),
    )


@pytest.fixture
async def dead(kind: BrokerKind, broker: Broker) -> Broker:
    """A namespace with five dead letters in a backlog queue; two of them are encrypted."""
    if kind.name.startswith("pair"):
        pytest.skip("a pair has a backlog, and is none: it refuses what has an envelope")
    await broker.create_queue(QUEUE, backlog.QUEUE_PROPERTIES)
    codecs = [CODEC] * 3 + [ENCRYPTING] * 2
    wrapped = [
        codec.wrap(each, ORDERS, attempt=each.message_id, now=now())
        for codec, each in zip(codecs, SENT, strict=True)
    ]
    await broker.send(QUEUE, wrapped)
    async with broker.open_receiver(QUEUE) as receiver:
        left = len(wrapped)
        while left:
            for delivery in await receiver.receive(left):
                await receiver.settle(delivery, DeadLetter(reason=MALFORMED, description="x"))
                left -= 1
    return broker


@needs(Capability.DEAD_LETTER)
async def test_dead_letters_are_shown_moved_back_and_open_again(dead: Broker) -> None:
    redrive = redrive_on(dead)

    survey = await redrive.survey(Selection())
    again = await redrive.survey(Selection(entities=("or*",)))
    done = await redrive.run(Selection(reasons=(MALFORMED,)), add=lambda _: None)

    assert [(each.reason, each.entity, each.moves) for each in survey.groups] == [
        (MALFORMED, "orders", 5)
    ]
    assert again.moves == 5
    assert done == Redriven(moved=5)
    home = {}
    with trio.fail_after(PATIENCE):
        async with dead.open_receiver(QUEUE) as receiver:
            while len(home) < len(SENT):
                for delivery in await receiver.receive(10):
                    opened = CODEC.unwrap(delivery.message)
                    home[opened.message.message_id] = opened
                    is_hidden = b"color" not in encode_message(delivery.message)
                    assert is_hidden == (opened.message.message_id in {"m3", "m4"})
                    await receiver.settle(delivery, Complete())
    assert [
        (each.message.message_id, each.message.body, each.message.session_id, each.time_to_live)
        for _, each in sorted(home.items())
    ] == [(each.message_id, each.body, "s", timedelta(days=1)) for each in SENT]
    assert (await redrive.survey(Selection())).messages == 0


@needs(Capability.DEAD_LETTER)
async def test_dead_letters_of_the_backlog_are_counted(dead: Broker) -> None:
    rotation = Rotation(queues=[QUEUE], cooldown=30, rng=random.Random(1), observer=Events())
    depth = BacklogDepth(secondary=dead, rotation=rotation, label=LABEL, clock=now)

    letters = (await depth.read(30, troubled=True)).dead_letters

    assert letters.messages == 5
    assert sum(letters.reasons.values()) == 5


def queue_redrive_on(broker: Broker, **keys: Any) -> QueueRedrive:
    order = RedriveOrder(selection=Selection(), queue=ORDERS.name, **keys)
    return QueueRedrive.of(order, broker, Runtime(observer=Events()))


async def bury(broker: Broker, messages: Sequence[Message]) -> None:
    await broker.send(ORDERS, messages)
    left = len(messages)
    async with broker.open_receiver(ORDERS) as receiver:
        while left:
            for delivery in await receiver.receive(left):
                await receiver.settle(delivery, DeadLetter(reason="Refused", description="x"))
                left -= 1


@needs(Capability.DEAD_LETTER)
async def test_dead_letters_of_any_queue_are_moved_by_id_and_with_changes(
    kind: BrokerKind, broker: Broker
) -> None:
    for queue in (ORDERS, PARKED):
        await broker.create_queue(queue, QueueProperties())
    await broker.send(PARKED, [Message(message_id="p1", body=b"parked")])
    sent = [Message(message_id=f"m{n}", body=b"%d" % n, properties={"old": "x"}) for n in range(3)]
    await bury(broker, [*sent, Message(body=b"same"), Message(body=b"same")])
    all_of_them = queue_redrive_on(broker)
    by_id = RedriveOrder(selection=Selection(), queue=ORDERS.name, ids=("m1",)).selected

    survey = await all_of_them.survey(Selection(), peek=2)
    one = await all_of_them.run(by_id, add=lambda _: None)
    changing = queue_redrive_on(broker, properties=("new=y",), without=("old",), body="fixed")
    others = await changing.run(Selection(reasons=("refused",)), add=lambda _: None)
    left = await all_of_them.survey(Selection())
    # As a policy of RabbitMQ may name another queue for dead letters.
    parked = await queue_redrive_on(broker, source=PARKED.name).run(Selection(), add=lambda _: None)

    assert [(each.reason, each.entity, each.moves) for each in survey.groups] == [
        ("Refused", "orders", 5)
    ]
    assert len(survey.samples) == 2
    assert (one, others, left.messages) == (Redriven(moved=1), Redriven(moved=4), 0)
    assert parked == Redriven(moved=1)
    home: list[Message] = []
    with trio.fail_after(PATIENCE):
        async with broker.open_receiver(ORDERS) as receiver:
            while len(home) < 6:
                for delivery in await receiver.receive(10):
                    home.append(delivery.message)
                    await receiver.settle(delivery, Complete())
    [unchanged] = [each for each in home if each.body == b"1"]
    assert (unchanged.message_id, unchanged.properties) == ("m1", {"old": "x"})
    changed = [each for each in home if each.body == b"fixed"]
    assert [each.properties for each in changed] == [{"new": "y"}] * 4
    assert {each.message_id for each in changed} >= {"m0", "m2"}
    assert all(DEAD_LETTER_REASON not in each.properties for each in home)
