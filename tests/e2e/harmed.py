"""An installation under load to which a test does harm; then every queue is read and judged."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from gateway.domain.message import AcceptedBy
from tests.e2e.installation import LOOK, Installation
from tests.e2e.processes import ROOT, Gateways
from tests.harness.chaos_proxy import ChaosProxy
from tests.harness.patience import PATIENCE

RATE: Final = 8.0  # sends/s of each of nine producers
LINES: Final = 60  # of a log, where a test fails
SOME: Final = 20  # messages
PRIMARY_NAME: Final = "primary.test.localhost"  # a loopback name, which an open broker takes
AT_HOME: Final = f"{PRIMARY_NAME} 127.0.0.1"
NAMES_VARIABLE: Final = "PAIRGATE_TEST_NAMES"
MOVED: Final = "entity_state_changed"


async def until(happened: Callable[[], bool]) -> None:
    """Return when that is true; other processes can't say so."""
    with trio.fail_after(PATIENCE):
        while True:
            if happened():
                return
            await trio.sleep(LOOK)


async def more(run: Installation, accepted_by: AcceptedBy, messages: int = SOME) -> None:
    """Return when the given number of further messages went that way."""
    wanted = run.traffic.accepted_by_counts[accepted_by] + messages
    await until(lambda: run.traffic.accepted_by_counts[accepted_by] >= wanted)


def failovers(run: Installation) -> int:
    return run.gateway.count(MOVED, after="secondary")


@asynccontextmanager
async def under_load(run: Installation) -> AsyncIterator[None]:
    """
    Producers send all the time within, and some time before and after.

    In the end all is healed, the backlog is drained, and nothing is lost or comes too often.
    """
    async with trio.open_nursery() as producers:
        await producers.start(run.send_all_the_time)
        await more(run, AcceptedBy.PRIMARY)
        yield
        await run.heal()
        await more(run, AcceptedBy.PRIMARY)
        run.traffic.stopping = True
    try:
        await run.drain()
    except trio.TooSlowError as error:
        lines = "\n".join(str(line) for line in run.gateway.log[-LINES:])
        raise AssertionError(f"the backlog isn't empty:\n{lines}") from error
    codes = await run.stop_all_but_brokers()
    verdict = await run.judge()

    told = run.describe(verdict)
    assert verdict.passed, told
    assert set(codes) == {0}, told


async def started(gateways: Gateways, **options: Any) -> Installation:
    """Start an installation; its syphon is inside the gateway, unless the options say otherwise."""
    run = Installation(gateways=gateways, **{"syphons": 0, "rate": RATE, **options})
    await run.start()
    return run


async def proxied(gateways: Gateways, **options: Any) -> tuple[Installation, ChaosProxy]:
    """Start an installation whose gateway and syphons reach the primary through a proxy."""
    run = Installation(gateways=gateways, **{"syphons": 0, "rate": RATE, **options})
    await run.start_brokers()
    proxy = ChaosProxy("127.0.0.1", run.primary.port, rng=random.Random(1))
    await gateways.nursery.start(proxy.serve)
    run.configure(f"127.0.0.1:{proxy.port}", run.secondary.address)
    await run.start_gateways()
    return run, proxy


def mean(names: Path, *lines: str) -> None:
    """
    Give the names these addresses from now on; each line is a name and its address, or "silent".
    """
    new = names.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(names)


async def named(gateways: Gateways, names: Path, **options: Any) -> Installation:
    """Start an installation whose gateway knows the primary by a name, which `names` resolves."""
    run = Installation(gateways=gateways, **{"syphons": 0, "rate": RATE, **options})
    await run.start_brokers()
    mean(names, AT_HOME)
    gateways.environments["gateway"] = {
        "PYTHONPATH": f"{Path(__file__).parent / 'names'}:{ROOT}",
        NAMES_VARIABLE: str(names),
    }
    run.configure(f"{PRIMARY_NAME}:{run.primary.port}", run.secondary.address)
    await run.start_gateways()
    return run
