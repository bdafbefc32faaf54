"""`pairgate store check | backup | compact` as processes, beside gateways that run and die."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    fork_server,
)
from tests.e2e.rest import send, take
from tests.store.embedded.crashes import break_index, content
from tests.store.embedded.stores import ORDERS, embedded

pytestmark = pytest.mark.slow

CONFIG = broker_config("orders")  # the namespace's store is broker.db
STORE = [sys.executable, "-m", "gateway", "store"]


async def store(
    process: GatewayProcess, command: str, *arguments: str | Path
) -> tuple[int, str, str]:
    """`pairgate store COMMAND --config FILE ...` in the folder of that process."""
    asked = ["store", command, *map(str, arguments)]
    result = await fork_server().run(process.folder, asked)
    return result.returncode, result.stdout.decode(), result.stderr.decode()


async def test_a_store_that_is_served_is_left_alone(gateways: Gateways) -> None:
    broker = await gateways.start(CONFIG)

    for command in (["check", "here"], ["compact", "here"]):
        code, output, errors = await store(broker, *command)
        assert (code, output) == (75, "")
        assert "another process has this store open; stop the gateway" in errors


async def test_a_backup_beside_a_gateway_under_load_has_what_was_acknowledged_before(
    gateways: Gateways, tmp_path: Path
) -> None:
    broker = await gateways.start(CONFIG)
    sent: list[str] = []
    copies = tmp_path / "copies"
    copies.mkdir()
    copy, killed = copies / "a.db", copies / "killed.db"

    async def keep_sending() -> None:
        while True:
            body = f"{len(sent)} ".ljust(20_000, "x")
            status, _ = await send(broker.address, "orders", body.encode())
            assert status == 201
            sent.append(body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_sending)
        await broker.until(lambda: len(sent) >= 100)
        # A backup that is killed leaves no copy, and the next one isn't in its way.
        begun = await trio.lowlevel.open_process(
            [*STORE, "backup", "here", str(killed), "--rate-limit", "0.5"],
            cwd=broker.folder,
            env=environment(),
        )
        await broker.until((copies / "killed.db.new").exists)
        begun.kill()
        await begun.wait()
        assert not killed.exists()

        before = len(sent)
        code, output, errors = await store(broker, "backup", "here", copy, "--rate-limit", "2")
        assert (code, errors) == (0, "")
        told = json.loads((await store(broker, "check", f"embedded:{copy}", "--json"))[1])
        assert (told["good"], told["problems"]) == (True, [])
        after = len(sent)
        code, _, _ = await store(broker, "backup", "here", killed)
        assert code == 0
        code, _, errors = await store(broker, "backup", "here", copy)
        assert (code, "already there" in errors) == (1, True)
        nursery.cancel_scope.cancel()

    async with embedded(copies) as copied:
        found, after_this = list[str](), 0
        while page := await copied.peek(ORDERS, from_sequence=after_this, limit=10**6):
            found += [each.message.body.decode() for each in page]
            after_this = page[-1].sequence_number + 1
    assert set(found) >= set(sent[:before])
    assert before < after
    assert f"{len(found)} messages" in output


async def test_a_check_after_a_crash_changes_nothing(gateways: Gateways) -> None:
    broker = await gateways.start(CONFIG)
    await send(broker.address, "orders", b"one")
    await broker.kill()
    before = content(broker.folder)

    code, output, _ = await store(broker, "check", "here", "--json")
    found = json.loads(output)
    assert (code, found["good"]) == (0, True)
    assert [(each["queue"], each["messages"]) for each in found["contents"]] == [("orders", 1)]
    assert found["log_bytes"] > 0
    assert content(broker.folder) == before

    code, output, _ = await store(broker, "check", "embedded:broker.db")
    assert code == 0
    assert "good    orders: 1 active" in output
    assert "in the log after an unclean shutdown: read, and left there" in output


async def test_a_gateway_starts_from_a_backup(gateways: Gateways) -> None:
    broker = await gateways.start(CONFIG, name="broker")
    await send(broker.address, "orders", b"one")
    await broker.kill()

    code, output, _ = await store(broker, "backup", "here", "copy.db", "--json")
    assert (code, json.loads(output)["messages"]) == (0, 1)

    restored = gateways.prepare(CONFIG, name="restored")
    restored.folder.mkdir()
    shutil.copy(broker.folder / "copy.db", restored.folder / "broker.db")
    await restored.start()
    assert await take(restored.address, "orders") == b"one"
    assert restored.count("doubtful") == 0


async def test_a_backup_over_the_files_of_a_crashed_store_is_not_mixed_with_them(
    gateways: Gateways,
) -> None:
    broker = await gateways.start(CONFIG)
    await send(broker.address, "orders", b"one")
    await broker.kill()
    await store(broker, "backup", "here", "copy.db")
    shutil.copy(broker.folder / "copy.db", broker.folder / "broker.db")

    await broker.start(wait=False)
    assert await broker.wait() == 1
    assert any("the log of another store" in line for line in broker.garbage)

    (broker.folder / "broker.db-wal").unlink()
    await broker.start(wait=False)
    assert await broker.wait() == 1
    assert any("--accept-loss" in line for line in broker.garbage)

    code, output, _ = await store(broker, "check", "here", "--accept-loss")
    assert (code, "accepted: the store starts again" in output) == (0, True)
    await broker.start()
    assert await take(broker.address, "orders") == b"one"


async def test_a_compacted_store_is_served_again(gateways: Gateways) -> None:
    broker = await gateways.start(CONFIG)
    for _ in range(20):
        await send(broker.address, "orders", b"x" * 100_000)
    for _ in range(19):
        await take(broker.address, "orders")
    assert await broker.stop() == 0

    code, output, _ = await store(broker, "compact", "here", "--json")
    sizes = json.loads(output)
    assert code == 0
    assert sizes["bytes_after"] < sizes["bytes_before"] / 4
    await broker.start()
    assert await take(broker.address, "orders") == b"x" * 100_000


async def test_a_damaged_store_is_refused_and_what_it_holds_is_salvaged(gateways: Gateways) -> None:
    broker = await gateways.start(CONFIG)
    await send(broker.address, "orders", b"one")
    await broker.stop()
    break_index(broker.folder / "broker.db", "message_order")

    await broker.start(wait=False)
    assert await broker.wait() == 1
    assert any("`pairgate store check` says how much" in line for line in broker.garbage)
    code, output, _ = await store(broker, "check", "here", "--salvage", "new.db")
    assert (code, "bad     " in output) == (1, True)
    assert "good    new.db: 1 messages" in output

    salvaged = gateways.prepare(CONFIG, name="salvaged")
    salvaged.folder.mkdir()
    shutil.copy(broker.folder / "new.db", salvaged.folder / "broker.db")
    await salvaged.start()
    assert await take(salvaged.address, "orders") == b"one"
