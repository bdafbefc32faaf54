"""Listeners on a store on disk, also when they are killed, and on a pair."""

import random
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.listening import RAW, ListenerOptions, QueueListener
from gateway.listening.stores.sqlite import SqliteValues
from gateway.store.embedded.broker import EmbeddedBroker
from tests.harness.faults import Operation, Refuse
from tests.harness.patience import PATIENCE
from tests.listening.harness import virtual_time
from tests.listening.worker import OPTIONS
from tests.pairing.harness import Harness

ORDERS = EntityPath("orders")
SENT = [str(number) for number in range(2000)]


@pytest.mark.slow
async def test_two_listeners_one_drained_under_load_do_all_that_is_on_disk(tmp_path: Path) -> None:
    handled: Counter[str] = Counter()
    enough, done = trio.Event(), trio.Event()

    async def handle(item):
        await trio.sleep(0.001)
        if item.attempt == 1 and int(item.message.message_id) % 50 == 0:
            raise ValueError
        handled[item.message.message_id] += 1
        if len(handled) > 500:
            enough.set()
        if len(handled) == len(SENT):
            done.set()

    def listener(store):
        options = ListenerOptions(retry=Backoff(first=0.01))
        return QueueListener(
            broker=store,
            queues="orders",
            format=RAW,
            handle=handle,
            clock=lambda: datetime.now(UTC),
            rng=random.Random(1),
            options=options,
        )

    with trio.fail_after(PATIENCE):
        store = EmbeddedBroker(tmp_path / "a.db", lambda: datetime.now(UTC), random.Random(0))
        async with store, trio.open_nursery() as nursery:
            await store.create_queue(ORDERS, QueueProperties())
            await store.send(ORDERS, [Message(message_id=each, body=b"x") for each in SENT])
            first, second = listener(store), listener(store)
            await nursery.start(first.run)
            await enough.wait()
            await first.drain()
            await nursery.start(second.run)
            await done.wait()
            await second.drain()
            left = (await store.inspect(ORDERS)).active

    assert set(handled) == set(SENT)
    assert left == 0
    assert set(handled.values()) == {1}  # no process was killed: no message is handled twice


@virtual_time
async def test_a_listener_on_a_pair_gets_what_was_diverted_and_came_back():
    seen = []

    async def handle(item):
        seen.append(item.message.message_id)

    async with trio.open_nursery() as nursery:
        harness = Harness(nursery=nursery)
        await harness.open()
        pair = await harness.pair()
        await harness.syphon()
        listener = QueueListener(
            broker=pair.broker,
            queues="orders",
            format=RAW,
            handle=handle,
            clock=harness.clock,
            rng=harness.rng,
        )
        await nursery.start(listener.run)
        harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
        await pair.broker.send(ORDERS, [Message(message_id="m1")])
        await trio.sleep(600.0)
        before = list(seen)
        harness.primary.heal()
        await trio.sleep(600.0)
        nursery.cancel_scope.cancel()

    assert (before, seen) == ([], ["m1"])


@pytest.mark.slow
async def test_listeners_that_are_killed_in_the_middle_lose_nothing(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.db", tmp_path / "notes"
    notes.touch()
    async with EmbeddedBroker(path, lambda: datetime.now(UTC), random.Random(0)) as store:
        await store.create_queue(ORDERS, QueueProperties(max_delivery_count=1000))
        await store.send(ORDERS, [Message(message_id=each, body=b"x") for each in SENT])

    def noted() -> list[str]:
        return notes.read_text().split()

    command = [sys.executable, "-m", "tests.listening.worker", str(path), str(notes)]
    with trio.fail_after(PATIENCE):
        for goal in (300, 900, len(SENT)):
            async with trio.open_nursery() as nursery:
                process = await nursery.start(partial(trio.run_process, command, check=False))
                while len(set(noted())) < goal:
                    assert process.poll() is None, "the worker has ended by itself"
                    await trio.sleep(0.05)
                process.kill()

    assert set(noted()) == set(SENT)
    # Messages that were locked at a kill come again, beyond the limit one batch of the only task.
    assert len(noted()) <= len(SENT) + 3 * (OPTIONS.max_locked + OPTIONS.batch)


@pytest.mark.slow
async def test_a_process_that_is_killed_while_it_waits_finds_all_answers_after_its_restart(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    files = [str(tmp_path / name) for name in ("a.db", "kept.db", "notes")]
    command = [sys.executable, "-m", "tests.listening.requester", *files]
    with trio.fail_after(PATIENCE):
        async with SqliteValues(tmp_path / "kept.db") as kept, trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, [*command, "3"], check=False))
            while len(await kept.keys()) < 4:  # noqa: ASYNC110 the request and three answers
                await trio.sleep(0.05)
            process.kill()
        asked_before = notes.read_text().split()
        restarted = await trio.run_process([*command, "5"], capture_stdout=True)
    asked_again = notes.read_text().split()[len(asked_before) :]
    async with SqliteValues(tmp_path / "kept.db") as kept:
        left = await kept.keys()

    assert restarted.stdout == b"0 2 4 6 8\n"
    assert set(asked_again) == {"3", "4"}  # answered requests aren't repeated
    assert left == []
