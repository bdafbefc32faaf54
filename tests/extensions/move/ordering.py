"""Orders of an operator to a gateway that moves entities."""

import json
from typing import Any

import trio

from gateway.app.failure import ExitCode
from tests.e2e.commands import run
from tests.e2e.processes import GatewayProcess
from tests.harness.patience import PATIENCE


async def move(gateway: GatewayProcess, *words: str) -> Any:
    """Give the order; again as long as the command calls its failure temporary."""
    with trio.fail_after(PATIENCE):
        code = int(ExitCode.TEMPORARY)
        while code == ExitCode.TEMPORARY:
            code, output, errors = await run(gateway.folder, "move", *words, "--json")
    assert code == 0, errors
    return json.loads(output)


async def until(gateway: GatewayProcess, stage: str) -> Any:
    """Return the only move, when it has that stage and the time of that stage has begun."""
    with trio.fail_after(PATIENCE):  # several seconds on a quiet machine
        while True:
            [found] = (await move(gateway, "status"))["moves"]
            if found["stage"] == stage:
                await trio.sleep(2.5)  # `stages.SWITCH`, and a reading
                return found
