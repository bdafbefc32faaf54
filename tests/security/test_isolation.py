"""A bug that one message meets harms no other message."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import attrs
import pytest

from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InternalError
from gateway.domain.events.gateway import Event, Started
from gateway.domain.events.stores import RequestFailed
from gateway.domain.message import Complete, DeadLetter, Delivery, Message
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.engine import enqueue as enqueue
from gateway.store.engine.queue_content import QueueContent
from gateway.store.local.broker import LocalBroker
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.memory import MemoryBroker

ORDERS = EntityPath("orders")


@attrs.define
class Heard:
    events: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.events.append(event)


def real_date() -> datetime:
    return Runtime.now()


@asynccontextmanager
async def opened(kind: str, folder: Path, heard: Heard) -> AsyncIterator[LocalBroker]:
    rng = random.Random(0)
    if kind == "memory":
        broker: LocalBroker = MemoryBroker(real_date, rng, hooks=LocalHooks(observer=heard))
    else:
        broker = EmbeddedBroker(folder / "a.db", real_date, rng, hooks=LocalHooks(observer=heard))
    async with broker:
        await broker.create_queue(ORDERS, QueueProperties())
        yield broker


@pytest.fixture
def buggy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is called `bug` can't be sent, and one that was can't be dead-lettered."""
    right_check, right_bury = enqueue.check_message, QueueContent.dead_letter

    def check(message: enqueue.Incoming, properties: QueueProperties) -> None:
        if message.message_id == "bug":
            raise TypeError("a bug of this test")
        right_check(message, properties)

    def dead_letter(
        self: QueueContent, row: enqueue.Row, why: DeadLetter, now: enqueue.Now
    ) -> None:
        right_bury(self, row, why, now)
        if why.reason == "bug":
            raise UnicodeError("a bug of this test")

    monkeypatch.setattr(enqueue, "check_message", check)
    monkeypatch.setattr(QueueContent, "dead_letter", dead_letter)


def named(*names: str) -> list[list[Message]]:
    return [[Message(message_id=name)] for name in names]


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@pytest.mark.usefixtures("buggy")
async def test_one_batch_of_many_fails_alone(kind: str, tmp_path: Path) -> None:
    heard = Heard()
    async with opened(kind, tmp_path, heard) as broker:
        verdicts = await broker.send_many(ORDERS, named("a", "bug", "b"))
        found = [each.message.message_id for each in await broker.peek(ORDERS, limit=10)]
        with pytest.raises(InternalError) as refused:
            await broker.send(ORDERS, named("bug")[0])

    assert [type(verdict) for verdict in verdicts] == [type(None), InternalError, type(None)]
    assert found == ["a", "b"]
    assert isinstance(refused.value.__cause__, TypeError)
    told = [event for event in heard.events if isinstance(event, RequestFailed)]
    assert len(told) == 3  # of all of them, and of it alone, twice
    assert all("a bug of this test" in event.traceback for event in told)
    assert {event.entity for event in told} == {ORDERS}


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@pytest.mark.usefixtures("buggy")
async def test_one_settlement_of_many_fails_alone(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path, Heard()) as broker:
        await broker.send_many(ORDERS, named("a", "b", "c"))
        async with broker.open_receiver(ORDERS) as receiver:
            taken: list[Delivery] = list(await receiver.receive(3))
            settlements = [Complete(), DeadLetter(reason="bug"), DeadLetter(reason="other")]
            verdicts = await receiver.settle_many(list(zip(taken, settlements, strict=True)))
            info = await broker.inspect(ORDERS)
            await receiver.renew(taken[1])  # the lock is where it was
            await receiver.settle(taken[1], Complete())

    assert [type(verdict) for verdict in verdicts] == [type(None), InternalError, type(None)]
    assert (info.active, info.dead_lettered) == (1, 1)


def test_the_log_has_no_seed() -> None:
    assert [field.name for field in attrs.fields(Started)] == ["configuration"]
