"""Messages between a parent and a worker: whole, in order, and never more than are read."""

import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from gateway.extensions.workers.channel import WorkerChannel


async def test_messages_arrive_whole_and_in_their_order(autojump_clock):
    ours, theirs = memory_stream_pair()
    sender, reader = WorkerChannel(ours), WorkerChannel(theirs)
    for number in range(3):
        sender.put({"number": number, "text": "one\ntwo"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.write)
        await sender.sent()
        nursery.cancel_scope.cancel()

    assert [await reader.read() for _ in range(3)] == [
        {"number": number, "text": "one\ntwo"} for number in range(3)
    ]


async def test_changes_that_come_faster_than_they_are_read_become_one_message(autojump_clock):
    ours, theirs = lockstep_stream_pair()
    changed: list[int] = []

    def collect():
        if not changed:
            return None
        news = {"changed": list(changed)}
        changed.clear()
        return news

    sender, reader = WorkerChannel(ours, [collect]), WorkerChannel(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.write)
        for number in range(100):
            changed.append(number)
            sender.wake()
            await wait_all_tasks_blocked()
        first, second = await reader.read(), await reader.read()
        nursery.cancel_scope.cancel()

    assert first == {"changed": [0]}
    assert second == {"changed": list(range(1, 100))}


async def test_the_end_of_the_other_side_is_told(autojump_clock):
    ours, theirs = memory_stream_pair()
    reader, sender = WorkerChannel(ours), WorkerChannel(theirs)
    await theirs.send_all(b'{"whole": 1}\n{"cut": ')
    await theirs.aclose()
    sender.put({"lost": 1})
    await sender.write()  # returns, as nothing can be written any more

    assert await reader.read() == {"whole": 1}
    assert await reader.read() is None


async def test_the_last_message_is_written_where_nobody_writes(autojump_clock):
    ours, theirs = memory_stream_pair()
    await WorkerChannel(ours).finish({"failed": "why"})

    assert await WorkerChannel(theirs).read() == {"failed": "why"}
