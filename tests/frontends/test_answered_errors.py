"""An answered error keeps nothing of its request, on any front end."""

import gc
import random
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import QuotaExceeded, drop_tracebacks
from gateway.domain.message import Message
from gateway.frontends.admin.control import Executor
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker
from gateway.wire.amqp.management import operations as ops
from gateway.wire.http.messages import Request
from gateway.wire.pairgate.control_calls import PAUSE
from tests.frontends.admin import test_control as admin
from tests.frontends.amqp.management import reply_to
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import ORDERS, POLICIES, Client, frontend_of, wall_clock
from tests.frontends.storage_client import open_client


class Full(MemoryBroker):
    """Refuses as a wrapper raises a verdict: the raising frame holds the error and the messages."""

    kept: weakref.ref[Message] | None = None

    async def send(self, entity: object, messages: Any) -> NoReturn:
        await trio.lowlevel.checkpoint()
        self.kept = weakref.ref(messages[0])
        verdict = QuotaExceeded("the queue is full")
        raise verdict

    async def schedule(self, entity: object, messages: Any) -> NoReturn:
        await self.send(entity, messages)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Full, Leases, trio.Nursery]]:
    broker = Full(wall_clock, random.Random(1))
    await broker.create_queue(ORDERS, QueueProperties())
    async with trio.open_nursery() as nursery:
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        yield broker, leases, nursery
        nursery.cancel_scope.cancel()


def is_gone(broker: Full) -> bool:
    assert broker.kept is not None, "nothing was sent"
    return broker.kept() is None


async def test_a_refused_body_over_rest_is_forgotten(autojump_clock: MockClock) -> None:
    async with opened() as (broker, leases, _):
        client = Client(frontend_of(broker, leases), broker)
        answer = await client.ask("POST", "/orders/messages", b"a body")

        assert answer.status == 403
        assert is_gone(broker)


async def test_a_refused_body_over_storage_is_forgotten(autojump_clock: MockClock) -> None:
    async with opened() as (broker, _, _), open_client(paired=True) as client:
        operations = attrs.evolve(client.frontend.operations, broker=broker)
        client.frontend = attrs.evolve(client.frontend, operations=operations)
        with pytest.raises(QuotaExceeded):
            await client.put("a body")

        assert is_gone(broker)


async def test_a_refused_body_over_amqp_is_forgotten(autojump_clock: MockClock) -> None:
    async with opened() as (broker, leases, nursery):
        authorizer = Authorizer(POLICIES, wall_clock=wall_clock)
        frontend = AmqpFrontend(
            broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
        )
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(frontend.serve_connection, theirs)
        sdk = Sdk.on(ours)
        nursery.start_soon(sdk.run)
        await sdk.open()
        await sdk.put_token()
        schedule = ops.Schedule(messages=(Message(body=b"a body", message_id="a"),))
        reply = await reply_to(sdk, schedule)

        assert reply.status == 403
        assert is_gone(broker)


async def test_a_refused_order_to_admin_is_forgotten() -> None:
    async def refuse(*_: object) -> NoReturn:
        await trio.lowlevel.checkpoint()
        verdict = QuotaExceeded("no more orders")
        raise verdict

    frontend = admin.frontend_of(admin.Recorded())
    assert frontend.control is not None
    control = attrs.evolve(frontend.control, executors=[Executor(PAUSE, refuse)])
    frontend = attrs.evolve(frontend, control=control)
    request: Request | None = admin.post("pause", b'{"targets": ["*"]}', **admin.basic("Manage"))
    kept = weakref.ref(request)
    answer = await frontend.handle(request)
    request = None

    assert answer.status == 403
    assert kept() is None


def test_tracebacks_of_errors_that_cause_each_other_are_dropped() -> None:
    first, second = QuotaExceeded("full"), QuotaExceeded("full, too")
    for error, cause in ((first, second), (second, first)):
        with pytest.raises(QuotaExceeded):
            raise error from cause

    drop_tracebacks(first)

    assert (first.__traceback__, second.__traceback__) == (None, None)
