"""The simulated disk and network do what real ones do."""

import random
from datetime import timedelta

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown, StorageFull, Unavailable
from gateway.domain.message import Complete, Message
from tests.harness.clocks import VirtualClock
from tests.harness.crash_disk import Ailment
from tests.harness.determinism import run_seeded
from tests.simulation.disk import DiskBroker
from tests.simulation.network import SOON, Network

ORDERS = EntityPath("orders")
SEEDS = range(20)


@pytest.fixture
def open_disk(tmp_path):
    opened = []

    def open_(seed):
        folder = tmp_path / str(seed)
        folder.mkdir()
        opened.append(DiskBroker(folder, VirtualClock(), random.Random(seed)))
        return opened[-1]

    yield open_
    for disk in opened:
        disk.close()


async def peeked(disk):
    return [each.message.message_id for each in await disk.peek(ORDERS, limit=100)]


def test_work_is_due_once_though_the_clocks_were_read_just_before(open_disk):
    """Steps share a reading of the clocks for a millisecond; with it nothing would be due yet."""

    async def main():
        disk = open_disk(0)
        await disk.create_queue(ORDERS, QueueProperties())
        await disk.create_queue(EntityPath("source"), QueueProperties(forward_to="orders"))
        due = VirtualClock()() + timedelta(seconds=0.1)
        await disk.schedule(EntityPath("source"), [Message(scheduled=due)])
        await trio.sleep(0.0955)
        await disk.inspect(ORDERS)
        return await peeked(disk)

    assert len(run_seeded(main, seed=0, most_rounds=1000)) == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_acknowledged_message_outlives_power_cuts(open_disk, seed, autojump_clock):
    disk = open_disk(seed)
    await disk.create_queue(ORDERS, QueueProperties())

    for number in range(3):
        await disk.send(ORDERS, [Message(message_id=str(number))])
        disk.cut_power()

    assert await peeked(disk) == ["0", "1", "2"]


async def test_a_message_without_an_answer_may_be_there_or_not(open_disk, autojump_clock):
    found = set()
    for seed in SEEDS:
        disk = open_disk(seed)
        await disk.create_queue(ORDERS, QueueProperties())
        with pytest.RaisesGroup(OutcomeUnknown):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(disk.send, ORDERS, [Message(message_id="1")])
                await trio.testing.wait_all_tasks_blocked()
                disk.cut_power()
        found.add(tuple(await peeked(disk)))

    assert found == {(), ("1",)}


@pytest.mark.parametrize("ailment", Ailment)
async def test_a_disk_that_fails_ends_the_store_until_it_is_started_again(
    open_disk, ailment, autojump_clock
):
    disk = open_disk(1)
    await disk.create_queue(ORDERS, QueueProperties())
    await disk.send(ORDERS, [Message(message_id="before")])

    disk.ailment = ailment
    with pytest.raises(OutcomeUnknown):
        await disk.send(ORDERS, [Message(message_id="meanwhile")])
    disk.ailment = None
    with pytest.raises(Unavailable, match="the store has failed"):
        await disk.send(ORDERS, [Message(message_id="refused")])
    assert disk.failed.is_set()

    disk.start_again()
    await disk.send(ORDERS, [Message(message_id="after")])

    found = await peeked(disk)
    assert [each for each in found if each != "meanwhile"] == ["before", "after"]
    assert not disk.failed.is_set()


async def test_bytes_that_a_failed_sync_left_are_not_safe_before_the_next_one(
    open_disk, autojump_clock
):
    found = set()
    for seed in SEEDS:
        disk = open_disk(seed)
        await disk.create_queue(ORDERS, QueueProperties())
        disk.ailment = Ailment.SYNC
        with pytest.raises(OutcomeUnknown):
            await disk.send(ORDERS, [Message(message_id="1")])
        disk.cut_power()
        found.add(tuple(await peeked(disk)))

    assert found == {(), ("1",)}


async def test_a_disk_without_room_takes_nothing_in_and_gives_all_out(open_disk, autojump_clock):
    disk = open_disk(1)
    await disk.create_queue(ORDERS, QueueProperties())
    await disk.send(ORDERS, [Message(message_id="before")])
    disk.has_room = False
    await trio.sleep(2.0)  # it looks now and then

    with pytest.raises(StorageFull):
        await disk.send(ORDERS, [Message(message_id="refused")])
    async with disk.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
    disk.has_room = True
    await trio.sleep(2.0)
    await disk.send(ORDERS, [Message(message_id="after")])

    assert await peeked(disk) == ["after"]
    assert disk.refused == 1


async def test_a_receiver_that_waits_for_messages_is_told_after_a_power_cut(
    open_disk, autojump_clock
):
    disk = open_disk(1)
    await disk.create_queue(ORDERS, QueueProperties())
    async with disk.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:

        async def take():
            [delivery] = await receiver.receive(1)
            assert delivery.message.message_id == "1"

        nursery.start_soon(take)
        await trio.sleep(1.0)  # it has looked, and waits
        disk.cut_power()
        await disk.send(ORDERS, [Message(message_id="1")])


class Echo:
    """Sends back what it gets, until the connection ends."""

    async def serve(self, stream):
        async with stream:
            try:
                while data := await stream.receive_some():
                    await stream.send_all(data)
            except trio.BrokenResourceError:
                return


def network(breaking=0.0, until=1000.0, on_break=lambda: None):
    return Network(rng=random.Random(1), breaking=breaking, until=until, on_break=on_break)


async def test_nobody_listens_means_refused(nursery):
    net = network()
    await nursery.start(net.run)

    with pytest.raises(ConnectionRefusedError):
        await net.connect()


async def test_all_bytes_arrive_in_pieces(nursery):
    net = network()
    net.serve = Echo().serve
    await nursery.start(net.run)
    stream = await net.connect()

    await stream.send_all(bytes(5000))

    pieces = []
    while sum(pieces) < 5000:
        pieces.append(len(await stream.receive_some(4096)))
    assert sum(pieces) == 5000
    assert max(pieces) <= 700


async def test_a_connection_that_breaks_is_reset_for_both(nursery, autojump_clock):
    breaks = []
    net = network(breaking=1.0, on_break=lambda: breaks.append(trio.current_time()))
    net.serve = Echo().serve
    await nursery.start(net.run)
    stream = await net.connect()

    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"more")

    assert len(breaks) == 1
    assert trio.current_time() <= SOON


async def test_no_connection_breaks_when_all_is_healed(nursery, autojump_clock):
    net = network(breaking=1.0, until=-1.0)
    net.serve = Echo().serve
    await nursery.start(net.run)
    stream = await net.connect()
    await trio.sleep(2 * SOON)

    await stream.send_all(b"x")

    assert await stream.receive_some() == b"x"
