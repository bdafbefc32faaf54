"""Several batches in one step: their outcomes with a failing disk, a kill and a full writer."""

import signal
import subprocess
import sys
from pathlib import Path

import trio

from gateway.domain.errors import OutcomeUnknown
from gateway.store.embedded.files import Disk
from tests.harness.patience import PATIENCE
from tests.store.embedded.stores import ORDERS, embedded, failing_disk, numbered, stored_ids

SENDER = """
import os, signal, sys
from pathlib import Path
import attrs, trio
from tests.store.embedded.stores import ORDERS, embedded, numbered


async def main():
    async with embedded(Path(sys.argv[1])) as broker, trio.open_nursery() as nursery:
        async def send(first):
            batches = [numbered(first), numbered(first + 1), numbered(first + 2, first + 3)]
            batches[1] = [attrs.evolve(batches[1][0], body=bytes(2 * 1024 * 1024))]
            verdicts = await broker.send_many(ORDERS, batches)
            for batch, verdict in zip(batches, verdicts):
                for message in batch:
                    print("refused" if verdict else "taken", message.message_id, flush=True)
            if first == 200:
                os.kill(os.getpid(), signal.SIGKILL)
        for first in range(0, 400, 4):
            nursery.start_soon(send, first)
            await trio.lowlevel.checkpoint()
trio.run(main)
"""


def told_by_a_process_that_dies(folder: Path) -> list[list[str]]:
    program = [sys.executable, "-c", SENDER, str(folder)]
    died = subprocess.run(
        program, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    return [line.split() for line in died.stdout.splitlines()]


async def test_a_message_that_was_taken_in_one_step_with_others_survives_a_kill(tmp_path):
    told = told_by_a_process_that_dies(tmp_path)
    async with embedded(tmp_path) as broker:
        found = await stored_ids(broker)

    taken = [number for verdict, number in told if verdict == "taken"]
    refused = [number for verdict, number in told if verdict == "refused"]
    assert "200" in taken
    assert "201" in refused
    assert set(taken) <= set(found)
    assert not set(refused) & set(found)
    assert found == sorted(found, key=int)


async def test_batches_of_a_failed_commit_are_unknown_all_of_them(tmp_path):
    with failing_disk() as disk:
        async with embedded(tmp_path, Disk(vfs="failing")) as broker:
            await broker.send(ORDERS, numbered("before"))
            disk.failing = True
            verdicts = await broker.send_many(ORDERS, [numbered("1"), numbered("2")])

    assert [type(verdict) for verdict in verdicts] == [OutcomeUnknown] * 2


async def test_sends_that_wait_for_room_keep_their_order(tmp_path):
    async with embedded(tmp_path, max_pending_operations=2, max_pending_bytes=1000) as broker:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(60):
                    nursery.start_soon(broker.send_many, ORDERS, [numbered(number)])
                    await trio.lowlevel.checkpoint()  # the call is made before the next one is
        found = await stored_ids(broker)

    assert found == list(map(str, range(60)))


async def test_a_sender_that_gives_up_waiting_for_room_has_sent_nothing(tmp_path):
    async with embedded(tmp_path, max_pending_operations=1) as broker:
        await broker.send(ORDERS, numbered("before"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.send, ORDERS, numbered("first"))
            await trio.lowlevel.checkpoint()  # that has the room
            with trio.CancelScope() as scope:
                scope.cancel()
                await broker.send(ORDERS, numbered("never"))
        await broker.send(ORDERS, numbered("after"))
        found = await stored_ids(broker)

    assert found == ["before", "first", "after"]
