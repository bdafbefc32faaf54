"""
The embedded namespace keeps its promise beyond the contract: everything is still there afterwards.
"""

import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import zlib
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown, QuotaExceeded, StorageFull, Unavailable
from gateway.domain.events.stores import Quarantined
from gateway.domain.message import Abandon, Complete, DeadLetter, Defer, Kind, Message, Typed
from gateway.domain.topics.filters import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.embedded.files import Disk, StoreDamaged, StoreInUse
from gateway.store.embedded.upkeep import Upkeep
from gateway.store.local.hooks import LocalHooks
from tests.harness.patience import PATIENCE
from tests.store.embedded.stores import (
    ORDERS,
    Events,
    embedded,
    failing_disk,
    numbered,
    opened,
    real_date,
    stored_ids,
)


async def test_a_restart_keeps_everything_but_locks(tmp_path):
    properties = QueueProperties(
        max_delivery_count=7, lock_duration=timedelta(minutes=5), user_metadata="mine"
    )
    async with embedded(tmp_path) as broker:
        created = await broker.create_queue(ORDERS, properties)
        await broker.send(ORDERS, numbered(1, 2, 3))
        async with broker.open_receiver(ORDERS) as receiver:
            one, _two = [(await receiver.receive(1))[0] for _ in range(2)]
            await receiver.settle(one, DeadLetter(reason="bad", description="very"))
    async with embedded(tmp_path) as broker:
        info = await broker.inspect(ORDERS)
        async with broker.open_receiver(ORDERS) as receiver:
            again = [(await receiver.receive(1))[0] for _ in range(2)]
        [dead] = await broker.peek(ORDERS.dead_letter)

    assert (info.properties, info.created) == (properties, created.created)
    assert [(each.message.message_id, each.delivery_count) for each in again] == [
        ("2", 2),
        ("3", 1),
    ]
    assert dead.message.properties["DeadLetterReason"] == "bad"


async def test_a_sequence_number_is_never_used_again(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
        async with broker.open_receiver(ORDERS) as receiver:
            [first] = await receiver.receive(1)
            await receiver.settle(first, Complete())
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(2))
        [second] = await broker.peek(ORDERS)

    assert second.sequence_number > first.sequence_number


SENDER = """
import sys, random, trio
from pathlib import Path
from tests.store.embedded.stores import ORDERS, embedded, numbered

async def main():
    async with embedded(Path(sys.argv[1])) as broker, trio.open_nursery() as nursery:
        async def send(k):
            for i in range(10**6):
                await broker.send(ORDERS, numbered(f"{k}-{i}"))
                print(f"{k}-{i}", flush=True)
        for k in range(8):
            nursery.start_soon(send, k)
trio.run(main)
"""

CRASHING_CONSUMER = """
import sys, os, signal, trio
from pathlib import Path
from tests.store.embedded.stores import ORDERS, embedded


async def main():
    async with embedded(Path(sys.argv[1])) as broker, broker.open_receiver(ORDERS) as receiver:
        await receiver.receive(1)
        os.kill(os.getpid(), signal.SIGKILL)
trio.run(main)
"""


def killed(program: str, folder: Path, lines: int = 0) -> list[str]:
    """
    Run a process that is killed, by us after `lines` lines or by itself; return the lines it
    printed.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(lines)]
        if lines:
            process.kill()
        rest = process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [line.strip() for line in [*printed, *rest] if line.endswith("\n")]


async def test_kill_9_loses_no_acknowledged_message(tmp_path):
    acknowledged = killed(SENDER, tmp_path, 300)
    async with embedded(tmp_path) as broker:
        found = await stored_ids(broker)

    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


async def test_a_message_that_kills_its_consumer_is_dead_lettered_in_the_end(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, QueueProperties(max_delivery_count=2))
        await broker.send(ORDERS, numbered("poison"))
    for _ in range(2):
        killed(CRASHING_CONSUMER, tmp_path)
    async with embedded(tmp_path) as broker:
        async with broker.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                while not (found := await broker.peek(ORDERS.dead_letter)):
                    with trio.move_on_after(0.2):
                        await receiver.receive(1)
        [dead] = found

    assert dead.message.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


async def test_a_second_owner_is_refused(tmp_path):
    async with embedded(tmp_path):
        with pytest.raises(StoreInUse):
            async with embedded(tmp_path):
                pytest.fail("two owners")
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))


async def test_a_failed_commit_is_unknown_and_then_nothing_goes(tmp_path):
    with failing_disk() as disk:
        async with embedded(tmp_path, Disk(vfs="failing")) as broker:
            await broker.send(ORDERS, numbered("before"))
            disk.failing = True
            with pytest.raises(OutcomeUnknown):
                await broker.send(ORDERS, numbered("unknown"))
            disk.failing = False
            with trio.fail_after(PATIENCE):
                await broker.failed.wait()
            with pytest.raises(Unavailable):
                await broker.send(ORDERS, numbered("after"))
            with pytest.raises(Unavailable):
                await broker.inspect(ORDERS)
        async with embedded(tmp_path) as broker:
            found = await stored_ids(broker)

    assert found[0] == "before"
    assert "after" not in found


async def test_a_failed_commit_wakes_all_who_wait(tmp_path):
    outcomes: list[str] = []

    async def send(broker: EmbeddedBroker, number: int) -> None:
        try:
            await broker.send(ORDERS, numbered(number))
        except (OutcomeUnknown, Unavailable) as error:
            outcomes.append(type(error).__name__)

    with failing_disk() as disk:
        async with embedded(tmp_path, Disk(vfs="failing"), max_pending_operations=3) as broker:
            await broker.send(ORDERS, numbered("before"))
            disk.failing = True
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as senders:
                    for number in range(10):
                        senders.start_soon(send, broker, number)

    assert len(outcomes) == 10
    assert "OutcomeUnknown" in outcomes


async def test_a_cancelled_send_is_committed_all_the_same(tmp_path, nursery):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
        with trio.CancelScope() as scope:
            nursery.start_soon(lambda: _cancel_soon(scope))
            await broker.send(ORDERS, numbered(2))
        found = await stored_ids(broker)

    assert found == ["1", "2"]


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_more_senders_than_may_wait_all_get_their_turn(tmp_path):
    async with embedded(tmp_path, max_pending_operations=2, max_pending_bytes=500) as broker:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(broker.send, ORDERS, numbered(number))
        info = await broker.inspect(ORDERS)

    assert info.active == 50


async def test_a_closed_store_takes_nothing(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    with pytest.raises(Unavailable):
        await broker.send(ORDERS, numbered(2))
    assert not broker.failed.is_set()


async def test_closing_empties_the_log(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))

    assert not (tmp_path / "a.db-wal").exists()


async def test_files_are_for_us_alone(tmp_path):
    folder = tmp_path / "new"
    async with embedded(folder) as broker:
        await broker.send(ORDERS, numbered(1))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert set(modes) == {"a.db", "a.db-wal", "a.db.lock", "a.db.hwm"}


async def test_a_store_that_lost_commits_is_refused(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    shutil.copy(tmp_path / "a.db", tmp_path / "old.db")
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(2))
    shutil.copy(tmp_path / "old.db", tmp_path / "a.db")

    with pytest.raises(StoreDamaged, match="commits"):
        async with embedded(tmp_path):
            pytest.fail("a loss went unnoticed")


async def test_a_store_that_vanished_is_not_begun_anew(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    (tmp_path / "a.db").unlink()

    with pytest.raises(StoreDamaged, match="gone"):
        async with embedded(tmp_path):
            pytest.fail("a loss went unnoticed")


async def test_another_file_is_not_taken_for_a_store(tmp_path):
    (tmp_path / "a.db").write_bytes(b"something else" * 1000)

    with pytest.raises(StoreDamaged):
        async with embedded(tmp_path):
            pytest.fail("opened")


async def test_a_damaged_message_is_put_aside_and_the_others_are_served(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1, 2))
    with opened(tmp_path / "a.db") as connection:
        connection.execute("UPDATE message SET content = zeroblob(size) WHERE sequence = 1")
    events = Events()
    hooks = LocalHooks(observer=events)
    store = EmbeddedBroker(tmp_path / "a.db", real_date, random.Random(0), hooks=hooks)
    async with store as broker:
        async with broker.open_receiver(ORDERS) as receiver:
            with trio.fail_after(PATIENCE):
                [delivery] = await receiver.receive(10)
        info = await broker.inspect(ORDERS)
    with opened(tmp_path / "a.db") as connection:
        kept = connection.execute("SELECT sequence, length(content) FROM quarantine").fetchall()

    assert delivery.message.message_id == "2"
    assert events.seen == [Quarantined(queue=ORDERS, sequence_number=1)]
    assert info.active == 1
    assert len(kept) == 1


async def test_a_message_that_cannot_be_read_is_put_aside(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
    with opened(tmp_path / "a.db") as connection:
        fits = zlib.crc32(b"\xff", 1)  # as those of version 1
        connection.execute("UPDATE message SET content = x'ff', checksum = ?", (fits,))
    async with embedded(tmp_path) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            while (await broker.inspect(ORDERS)).active:
                with trio.move_on_after(0.3):
                    await receiver.receive(1)
                    pytest.fail("served")


async def test_a_full_disk_refuses_sends_and_lets_the_rest_be_settled(tmp_path):
    free = [10**12]
    disk = Disk(free_bytes=lambda _path: free[0])
    async with embedded(tmp_path, disk) as broker:
        await broker.send(ORDERS, numbered(1))
        free[0] = 10**6
        await trio.sleep(1.1)
        with pytest.raises(StorageFull):
            await broker.send(ORDERS, numbered(2))
        with pytest.raises(StorageFull):
            await broker.probe(ORDERS)
        async with broker.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Complete())
        info = await broker.inspect(ORDERS)

    assert info.active == 0


@pytest.fixture
def swept(monkeypatch):
    """Set when nothing is left of a queue that was deleted."""
    done = threading.Event()
    remove_slice = Upkeep.remove_slice

    def remove(upkeep, queue):
        remove_slice(upkeep, queue)
        if upkeep.deleted_queue() is None:
            done.set()

    monkeypatch.setattr(Upkeep, "remove_slice", remove)
    return done


async def test_the_messages_of_a_deleted_queue_leave_the_disk(tmp_path, swept):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(*range(2500)))
        await broker.delete_queue(ORDERS)
        await broker.send(EntityPath.parse("other"), numbered("stays"))
        assert await trio.to_thread.run_sync(swept.wait, PATIENCE)
    with opened(tmp_path / "a.db") as connection:
        left = connection.execute("SELECT count(*) FROM message").get
        queues = connection.execute("SELECT name FROM queue").fetchall()

    assert left == 1
    assert queues == [("other",)]


async def test_counts_of_deliveries_are_written_at_the_latest_when_the_store_closes(tmp_path):
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, numbered(1))
        async with broker.open_receiver(ORDERS) as receiver:
            for _ in range(3):
                [delivery] = await receiver.receive(1)
                await receiver.settle(delivery, Abandon())
    with opened(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT sequence, times FROM delivered").fetchall() == [(1, 3)]


async def test_a_large_message_goes_through(tmp_path):
    body = random.Random(0).randbytes(900_000)
    async with embedded(tmp_path) as broker:
        await broker.send(ORDERS, [Message(message_id="1", body=body)])
        [shown] = await broker.peek(ORDERS)

    assert shown.message.body == body


async def test_a_restart_keeps_sessions_and_what_was_deferred_and_seen(tmp_path):
    chats = EntityPath.parse("chats")
    async with embedded(tmp_path) as broker:
        await broker.create_queue(
            chats, QueueProperties(requires_session=True, requires_duplicate_detection=True)
        )
        messages = [Message(message_id=name, session_id=name[0]) for name in ("b1", "a1", "b2")]
        await broker.send(chats, messages)
        async with broker.open_session(chats, "b") as receiver:
            [first] = await receiver.receive(1)
            await receiver.settle(first, Defer())
            await receiver.set_state(b"half")
    async with embedded(tmp_path) as broker:
        await broker.send(chats, messages[:1])
        found = []
        for _ in range(2):
            async with broker.open_session(chats, None) as receiver:
                [delivery] = await receiver.receive(2)
                await receiver.settle(delivery, Complete())
                found.append((receiver.session_id, delivery.message.message_id))
        async with broker.open_session(chats, "b") as receiver:
            [deferred] = await receiver.receive_deferred([first.sequence_number])
            state = await receiver.get_state()

    assert found == [("a", "a1"), ("b", "b2")]
    assert (deferred.message.message_id, state) == ("b1", b"half")


async def test_a_restart_keeps_the_bytes_that_states_count(tmp_path):
    properties = QueueProperties(requires_session=True, max_size_in_megabytes=1)
    async with embedded(tmp_path) as broker:
        await broker.create_queue(ORDERS, properties)
        for name in "abc":
            async with broker.open_session(ORDERS, name) as session:
                await session.set_state(bytes(2**18))
    async with embedded(tmp_path) as broker, broker.open_session(ORDERS, "d") as session:
        with pytest.raises(QuotaExceeded, match="of 1048576 bytes"):
            await session.set_state(bytes(2**18))
        await session.set_state(bytes(2**17))
        state = await session.get_state()

    assert state == bytes(2**17)


async def test_after_a_restart_no_subscription_has_the_rules_of_one_that_was_deleted(tmp_path):
    news, rule = EntityPath("news"), Rule(name="mine", filter=FalseFilter())
    async with embedded(tmp_path) as broker:
        await broker.create_topic(news, TopicProperties())
        for name in ("first", "second", "third", "last"):
            await broker.create_subscription(news, name, SubscriptionProperties(), rule)
        await broker.create_rule(news, "third", Rule(name="all"))
        for name in ("first", "second", "last"):
            await broker.delete_subscription(news, name)
        await broker.create_subscription(news, "new", SubscriptionProperties())
    async with embedded(tmp_path) as broker:
        rules = {
            each.name: [rule.name for rule in await broker.list_rules(news, each.name)]
            for each in await broker.list_subscriptions(news)
        }
        await broker.send(news, numbered(1))
        held = {name: await stored_ids(broker, subscription(name)) for name in rules}

    assert rules == {"new": ["$Default"], "third": ["all", "mine"]}
    assert held == {"new": ["1"], "third": ["1"]}


def subscription(name: str) -> EntityPath:
    return EntityPath(f"news/Subscriptions/{name}")


async def test_a_restart_keeps_topics_with_all_that_belongs_to_them(tmp_path):
    news, values = EntityPath.parse("News"), {"@n": Typed(Kind.INT, 5)}
    rules = [
        Rule(name="sql", filter=SqlFilter(expression="n = @n", parameters=values)),
        Rule(
            name="both",
            filter=CorrelationFilter(label="x", properties={"when": Typed(Kind.UINT, 1)}),
            action=SqlAction(expression="SET n = @n", parameters=values),
        ),
        Rule(name="none", filter=FalseFilter()),
    ]
    async with embedded(tmp_path) as broker:
        await broker.create_topic(news, TopicProperties(user_metadata="mine"))
        subscription = await broker.create_subscription(
            news, "S", SubscriptionProperties(max_delivery_count=3), rules[0]
        )
        stored = [await broker.create_rule(news, "s", rule) for rule in rules[1:]]
        await broker.create_subscription(news, "gone", SubscriptionProperties())
        await broker.delete_subscription(news, "gone")
        topic = await broker.update_topic(news, TopicProperties(user_metadata="yours"))
        await broker.send(news, [Message(message_id="1", properties={"n": 5})])
    async with embedded(tmp_path) as broker:
        await broker.send(news, [Message(message_id="2", properties={"n": 5})])
        await broker.send(news, [Message(message_id="3", properties={"n": 6})])
        after = await broker.inspect_topic(news)
        subscriptions = await broker.list_subscriptions(news)
        found = await broker.list_rules(news, "s")
        held = await stored_ids(broker, subscription.path)

    assert (after.properties, after.version) == (topic.properties, topic.version)
    assert [info.properties for info in subscriptions] == [subscription.properties]
    assert [rule.filter for rule in found] == [rules[1].filter, rules[2].filter, rules[0].filter]
    assert found[:2] == stored
    assert held == ["1", "2"]


async def test_a_deleted_queue_leaves_nothing_on_the_disk(tmp_path, swept):
    async with embedded(tmp_path) as broker:
        await broker.create_queue(
            ORDERS, QueueProperties(requires_session=True, requires_duplicate_detection=True)
        )
        await broker.send(ORDERS, [Message(message_id="1", session_id="a")])
        await broker.delete_queue(ORDERS)
        assert await trio.to_thread.run_sync(swept.wait, PATIENCE)
    with opened(tmp_path / "a.db") as connection:
        left = [
            connection.execute(f"SELECT count(*) FROM {table}").get
            for table in ("queue", "message", "session", "seen", "rule")
        ]

    assert left == [0, 0, 0, 0, 0]


async def test_a_message_that_was_to_go_on_goes_on_after_a_restart(tmp_path):
    source, due = EntityPath.parse("source"), real_date() + timedelta(seconds=0.5)
    async with embedded(tmp_path) as broker:
        await broker.create_queue(source, QueueProperties(forward_to="orders"))
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.send(source, [Message(message_id="1", scheduled=due)])
    async with embedded(tmp_path) as broker, broker.open_receiver(ORDERS) as receiver:
        with trio.fail_after(PATIENCE):
            [delivery] = await receiver.receive(1)

    assert delivery.message.message_id == "1"
