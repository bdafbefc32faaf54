"""Clients that take, settle, renew and vanish at random: nothing is lost and nothing stays open."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import LockLost
from gateway.domain.message import Abandon, Complete, Message
from gateway.frontends.leases import Leases
from gateway.store.local.memory import MemoryBroker

ORDERS = EntityPath("orders")
MESSAGES = 8
ONE_VIRTUAL_DAY = 86_400.0


def wall_clock() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=trio.current_time())


async def consume(leases: Leases, rng: random.Random, completed: "Counter[str]") -> None:
    """A client: each of its requests may be given up, and each delivery forgotten."""
    while completed.total() < MESSAGES:
        with trio.move_on_after(rng.choice([0.0, 0.001, 1.0, 30.0])):
            for delivery in await leases.receive(ORDERS, rng.randint(1, 3)):
                token = delivery.lock_token or ""
                try:
                    await trio.sleep(rng.choice([0.0, 0.0, 5.0, 61.0]))
                    match rng.choice(["complete", "complete", "abandon", "renew", "forget"]):
                        case "complete":
                            with trio.CancelScope(shield=True):
                                await leases.settle(ORDERS, token, Complete())
                            completed[delivery.message.message_id] += 1
                        case "abandon":
                            await leases.settle(ORDERS, token, Abandon())
                        case "renew":
                            await leases.renew(ORDERS, token)
                except LockLost:
                    continue
        await trio.lowlevel.checkpoint()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.random_module())
def test_each_message_is_completed_once_whatever_clients_do(seed: int, order: object) -> None:
    completed: Counter[str] = Counter()
    rng = random.Random(seed)

    async def main() -> int:
        broker = MemoryBroker(wall_clock, random.Random(seed))
        leases = Leases(broker, wall_clock)
        await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
        await broker.send(ORDERS, [Message(message_id=str(n), body=b"") for n in range(MESSAGES)])
        with trio.fail_after(ONE_VIRTUAL_DAY):
            async with trio.open_nursery() as services:
                await services.start(leases.run)
                async with trio.open_nursery() as clients:
                    for _ in range(3):
                        clients.start_soon(consume, leases, rng, completed)
                await trio.sleep(200)
                tasks = len(services.child_tasks)
                services.cancel_scope.cancel()
        return tasks

    tasks = trio.run(main, clock=MockClock(autojump_threshold=0))

    assert completed == Counter({str(n): 1 for n in range(MESSAGES)})
    assert tasks == 1  # `run` itself
