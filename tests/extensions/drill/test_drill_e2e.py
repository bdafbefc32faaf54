"""Outages rehearsed with a running gateway, by the commands of the how-to page."""

import json
from typing import Any

import pytest
import trio

from tests.e2e.commands import pairgate
from tests.e2e.processes import GatewayProcess, Gateways
from tests.extensions.drill.drill import PAIR
from tests.harness.patience import PATIENCE
from tests.harness.terminal import at_terminal

pytestmark = pytest.mark.slow


def at_a_terminal(gateway: GatewayProcess) -> tuple[int, str]:
    """A whole drill as a person sees it; its exit code, and the verdict."""
    with at_terminal(gateway.folder, "drill", "one", "--no-load", "--for", "1s") as terminal:
        terminal.sees("For this gateway east refuses all connections for 1 s (one)")
        terminal.sees("Type east to go on:")
        terminal.types("east")
        terminal.sees("the drill begins")
        terminal.sees("the way is restored")
        terminal.sees("the verdict")
        return terminal.ends()


def interrupted(gateway: GatewayProcess) -> tuple[int, str]:
    """The same, until the person has seen enough."""
    with at_terminal(gateway.folder, "drill", "two", "--no-load", "--for", "10m") as terminal:
        terminal.sees("(two)")
        terminal.types("east")
        terminal.sees("the drill begins")
        terminal.interrupts()
        return terminal.ends()


def declined(gateway: GatewayProcess) -> tuple[int, str]:
    with at_terminal(gateway.folder, "drill", "--no-load") as terminal:
        terminal.sees("Type east to go on:")
        terminal.types("")
        return terminal.ends()


def copies_told(outage: dict[str, Any]) -> int:
    """The copies that the gateway says there may be."""
    told = ("twice", "possibly_twice", "possibly_twice_by_syphon")
    return sum(outage[each] or 0 for each in told)


async def test_outages_are_rehearsed_and_nothing_is_lost(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR)

    refused = await trio.to_thread.run_sync(at_a_terminal, gateway)
    code, output, _ = await pairgate(
        gateway,
        "drill",
        "two",
        "--load",
        "two",
        "--for",
        "10s",
        "--fault",
        "hang",
        "--yes",
        "--json",
    )
    broken_off = await trio.to_thread.run_sync(interrupted, gateway)
    ended = await gateway.seen("drill_ended", ended_by="anonymous")
    not_begun = await trio.to_thread.run_sync(declined, gateway)
    with trio.fail_after(PATIENCE):
        status = 1
        while status != 0:  # a slow entity returns later
            status, told, _ = await pairgate(gateway, "status", "--json")
    _, report, _ = await pairgate(gateway, "outage-report", "--json")

    assert refused[0] == 0
    assert "everything came back" in refused[1]
    hung = json.loads(output)
    assert (code, hung["passed"], hung["lost"]) == (0, True, 0)
    # None by the drill; a machine that stalls leaves attempts without an answer, which are told.
    assert hung["twice"] <= sum(map(copies_told, json.loads(report)["outages"]))
    assert hung["diverted"] == hung["moved"] > 0
    assert broken_off[0] == 1
    assert "interrupted; the way is restored" in broken_off[1]
    assert ended["target"] == "two"
    assert not_begun[0] == 1
    assert (status, json.loads(told)["pair"]["drill"]) == (0, None)
    await gateway.until(lambda: gateway.count("drill_began") == gateway.count("drill_ended") == 3)


async def test_a_drill_shows_in_the_status_and_can_be_ended_from_elsewhere(
    gateways: Gateways,
) -> None:
    gateway = await gateways.start(PAIR)
    async with trio.open_nursery() as nursery:
        command = ("drill", "--no-load", "--for", "10m", "--yes", "--json", "--reason", "game day")
        outcome: list[tuple[int, str, str]] = []

        async def drill() -> None:
            outcome.append(await pairgate(gateway, *command))

        nursery.start_soon(drill)
        await gateway.seen("drill_began", reason="game day")
        code, told, _ = await pairgate(gateway, "status", "--json")
        ended = await pairgate(gateway, "drill", "--end")
    nothing = await pairgate(gateway, "drill", "--end")
    unnamed = await pairgate(gateway, "drill", "--load", "three", "--yes")

    status = json.loads(told)
    assert (code, status["pair"]["drill"]["fault"]) == (1, "refuse")
    assert "a drill is under way: namespace east, refuse" in " ".join(status["problems"])
    assert ended[:2] == (0, "the drill has ended\n")
    assert nothing[:2] == (0, "no drill is under way\n")
    assert outcome[0][0] == 0
    assert json.loads(outcome[0][1])["back_after"] is not None
    assert unnamed[0] == 2
    assert "pairgate create" in unnamed[2]


async def test_without_the_permission_nothing_begins(gateways: Gateways) -> None:
    gateway = await gateways.start(PAIR.partition("[drill]")[0])

    code, _, errors = await pairgate(gateway, "drill", "--no-load", "--yes")

    assert code == 2
    assert "[drill]\nallowed = true" in errors
    assert gateway.count("drill_began") == 0
