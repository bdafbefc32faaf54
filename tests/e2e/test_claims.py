"""
Large bodies through gateways that are killed: each message that was answered with 201 arrives
whole.
"""

import random
from pathlib import Path

import pytest
import trio

from tests.command_line import PATIENTLY
from tests.e2e.commands import run
from tests.e2e.processes import Gateways, broker_config
from tests.e2e.rest import send, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

CONFIG = f"""{broker_config("orders")}
[claims]
store = "folder:bodies"
above = "1KiB"
"""
KILLS = 4
SENDERS = 3


def body_of(sender: int, number: int) -> bytes:
    return b"%d/%d " % (sender, number) + random.Random(number).randbytes(50_000)


async def test_a_command_receives_a_body_above_the_limit_of_messages(gateways: Gateways) -> None:
    gateway = await gateways.start(CONFIG)
    gateway.config_file.write_text(gateway.config)
    body = random.Random(1).randbytes(3 * 2**20)
    assert (await send(gateway.address, "orders", body))[0] == 201

    code, _, errors = await run(gateway.folder, "receive", "orders", "--output", "body", *PATIENTLY)

    assert (code, errors) == (0, "")
    assert (gateway.folder / "body").read_bytes() == body


async def test_a_kill_loses_no_body_that_was_accepted(gateways: Gateways) -> None:
    rng = random.Random(7)
    gateway = await gateways.start(CONFIG)
    accepted: set[bytes] = set()
    sent: set[bytes] = set()
    over, progress = False, trio.Event()

    async def produce(sender: int) -> None:
        nonlocal progress
        number = 0
        while not over:
            number += 1
            body = body_of(sender, number)
            sent.add(body)
            try:
                status, _ = await send(gateway.address, "orders", body)
            except OSError:
                await trio.sleep(0.05)
                continue
            if status == 201:
                accepted.add(body)
                if len(accepted) % 10 == 0:
                    progress.set()
                    progress = trio.Event()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for sender in range(SENDERS):
                nursery.start_soon(produce, sender)
            for _ in range(KILLS):
                await progress.wait()
                await trio.sleep(rng.random() * 0.05)
                await gateway.kill()
                await gateway.start()
            over = True
        found: set[bytes] = set()
        # A message that is there may come late on a busy machine; then one look for more.
        while body := await take(
            gateway.address, "orders", wait=1 if accepted <= found else PATIENCE
        ):
            found.add(body)

    assert accepted <= found <= sent
    assert gateway.count("claim_lost") == 0
    assert len(completed_in(gateway.folder / "bodies")) == len(found)


def completed_in(store: Path) -> list[Path]:
    return list(store.glob("??/*.done"))
