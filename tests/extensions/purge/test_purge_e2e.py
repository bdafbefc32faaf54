"""A backlog queue is purged at a terminal and by a script, and the dead letters' call is in /v1."""

import json

import pytest
import trio

from tests.e2e.commands import pairgate
from tests.e2e.control import order
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import send
from tests.extensions.drill.drill import PAIR
from tests.harness.terminal import at_terminal

pytestmark = pytest.mark.slow

QUEUE = "east/x-servicebus-transfer/0"
# Patient: an attempt that a stall of the machine cuts off would leave a further copy to purge.
ONE_QUEUE = PAIR.replace(
    "enable_syphon = true", "enable_syphon = false\nbacklog_queues = 1"
).replace('attempt_timeout = "500ms"', 'attempt_timeout = "30s"\nsend_timeout = "60s"')


def typed(gateway: GatewayProcess, *answers: str) -> list[tuple[int, str]]:
    """A purge for each answer; exit codes and the rest of the screen."""
    found = []
    for answer in answers:
        with at_terminal(gateway.folder, "purge", QUEUE) as terminal:
            terminal.sees("would never arrive there.")
            terminal.sees(f"Type {QUEUE} to go on:")
            terminal.types(answer)
            found.append(terminal.ends())
    return found


async def test_a_backlog_queue_is_purged_after_its_name_was_typed(gateways: Gateways) -> None:
    gateway = await gateways.start(ONE_QUEUE)
    await order(gateway, "failover", targets=["*"])
    for _ in range(3):
        assert await send(gateway.address, "one", b"test data") == (201, "backlog")
    arguments = ("purge", QUEUE, "--yes", "--json", "--messages")

    too_few = await pairgate(gateway, *arguments, "2")
    no_terminal = await pairgate(gateway, "purge", QUEUE)
    wrong, right = await trio.to_thread.run_sync(typed, gateway, "yes", QUEUE)
    nothing = await pairgate(gateway, *arguments, "0")
    counted = await order(gateway, "redrive", selection={})

    assert too_few[0] == 1
    assert "more has come" in too_few[2]
    assert no_terminal[0] == 2
    assert f"3 messages of {QUEUE} will be deleted" in no_terminal[2]
    assert "add --yes" in no_terminal[2]
    assert wrong[0] == 1
    assert "nothing was done" in wrong[1]
    assert right[0] == 0
    assert f"3 messages of {QUEUE} deleted" in right[1]
    assert (nothing[0], json.loads(nothing[1])["purged"]) == (0, 0)
    assert counted["groups"] == []
    purged = await gateway.seen("backlog_purged", messages=3)
    assert (purged["level"], purged["queue"], purged["left"]) == ("warning", QUEUE, 0)
