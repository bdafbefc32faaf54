"""Faults of the machine hit real processes: of its disk, its clocks and its resources."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from gateway.domain.errors import Unavailable
from gateway.domain.message import AcceptedBy
from gateway.ports import Broker
from gateway.store.embedded.store import LOW_WATER
from tests.e2e.harmed import MOVED, failovers, more, named, proxied, started, under_load, until
from tests.e2e.installation import ENTITIES, client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE
from tests.harness.syscalls import injected
from tests.harness.wall_clock import WallClock

pytestmark = pytest.mark.slow

TWENTY_MINUTES = 1200.0  # seconds
FIFTY_MINUTES = 3000.0  # a token of an hour is to be renewed then, and still good
TWO_HOURS = 7200.0
MIB = 1024 * 1024
SLOW_SYNC = 200_000  # microseconds
LEAST_THREADS = 2  # Trio's, and the one that writes the log


@contextmanager
def limited(process: GatewayProcess, kind: int, most: int) -> Iterator[None]:
    before = resource.prlimit(process.pid, kind)
    resource.prlimit(process.pid, kind, (most, before[1]))
    try:
        yield
    finally:
        if process.running:
            resource.prlimit(process.pid, kind, before)


def descriptors_of(process: GatewayProcess) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{process.pid}/fd")) + 1


def memory_of(process: GatewayProcess) -> int:
    """Return the size of the process's address space, in bytes."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def threads_of(process: GatewayProcess) -> int:
    return len(os.listdir(f"/proc/{process.pid}/task"))


async def test_a_primary_whose_disk_is_full_is_left_until_there_is_room(
    gateways: Gateways,
) -> None:
    run = await started(gateways)

    async with under_load(run):
        run.excuse(run.primary)
        with limited(run.primary, resource.RLIMIT_FSIZE, 4096):
            await more(run, AcceptedBy.BACKLOG)
            code = await run.primary.wait()  # a store that failed ends its process

    assert run.traffic.errors == 0
    assert code == 75


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
async def test_a_gateway_serves_without_room_for_its_spool_until_there_is(
    gateways: Gateways, tmp_path: Path
) -> None:
    disk, more = tmp_path / "disk", LOW_WATER + 8 * MIB
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    with small_disk(disk, more):
        filler = disk / "filler"
        filler.write_bytes(bytes(16 * MIB))
        spool = {"spool": str(disk / "spool.db"), "enable_syphon": False}
        config = pair_config(primary.address, secondary.address, **spool)
        gateway = await gateways.start(config)
        assert await send(gateway.address, "orders", b"one") == (201, "primary")
        await primary.kill()
        await secondary.kill()
        refused, _ = await send(gateway.address, "orders", b"refused")
        filler.unlink()
        spooled = None
        with trio.fail_after(PATIENCE):
            while spooled != (201, "spool"):
                spooled = await send(gateway.address, "orders", b"two")
        await gateway.kill()

    assert refused == 503


async def test_a_primary_whose_disk_can_only_be_read_is_left(gateways: Gateways) -> None:
    run = await started(gateways)

    async with under_load(run):
        run.excuse(run.primary)
        async with injected(run.primary.pid, "pwrite64:error=EROFS"):
            await more(run, AcceptedBy.BACKLOG)
        code = await run.primary.wait()  # a store that failed ends its process

    assert run.traffic.errors == 0
    assert code == 75


async def test_slow_syncs_of_the_primary_are_waited_for(gateways: Gateways) -> None:
    run = await started(gateways, is_patient=True)

    slow = [f"{call}:delay_enter={SLOW_SYNC}" for call in ("fdatasync", "fsync")]
    async with under_load(run), injected(run.primary.pid, *slow):
        await more(run, AcceptedBy.PRIMARY)

    assert run.traffic.errors == 0
    assert failovers(run) == 0


async def test_a_gateway_without_file_descriptors_serves_whom_it_has(gateways: Gateways) -> None:
    run, proxy = await proxied(gateways)

    async with under_load(run), client(run.gateway) as late:
        run.excuse(run.primary)
        with limited(run.gateway, resource.RLIMIT_NOFILE, descriptors_of(run.gateway)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(without_descriptors, late)
                proxy.reset_all()
                await more(run, AcceptedBy.PRIMARY)
                nursery.cancel_scope.cancel()
        await late.list_queues()

    assert run.gateway.count("connection_crashed") == 0


async def without_descriptors(late: Broker) -> None:
    """A request for which the gateway has no descriptor left, or one to answer 503."""
    with suppress(Unavailable):
        await late.list_queues()


async def test_a_gateway_without_memory_loses_nothing(gateways: Gateways) -> None:
    """Survival depends on the allocator's luck; acknowledged messages are safe in any case."""
    run = await started(gateways)

    async with under_load(run):
        run.excuse(run.gateway)
        with limited(run.gateway, resource.RLIMIT_AS, memory_of(run.gateway) + 65536):
            await trio.sleep(2.0)
        if run.gateway.running:
            await run.kill(run.gateway)  # as the kernel does


async def test_a_gateway_that_can_start_no_thread_diverts_and_comes_back(
    gateways: Gateways, tmp_path
) -> None:
    run = await named(gateways, tmp_path / "names", pairing={"failover_interval": "0s"})

    async with under_load(run):
        await until(lambda: threads_of(run.gateway) == LEAST_THREADS)  # an idle one would do
        async with injected(run.gateway.pid, "clone3:error=EAGAIN", "clone:error=EAGAIN"):
            await run.kill(run.primary)  # a new connection needs the name, and that a thread
            await more(run, AcceptedBy.BACKLOG)
            await run.primary.start()
            await more(run, AcceptedBy.BACKLOG)
        await run.back_on_the_primary()

    assert run.gateway.running is False  # stopped in the end, as no other code does
    assert run.gateway.count("started") == 1


async def test_a_gateway_with_hardly_any_processor_time_fails_nothing_over(
    gateways: Gateways,
) -> None:
    run = await started(gateways, rate=1.0, is_patient=True)

    async with under_load(run):
        for _ in range(40):
            run.gateway.signal(signal.SIGSTOP)
            await trio.sleep(0.09)
            run.gateway.signal(signal.SIGCONT)
            await trio.sleep(0.01)

    assert failovers(run) == 0


async def test_a_queue_that_grows_on_the_primary_is_no_trouble(gateways: Gateways) -> None:
    run = await started(gateways, rate=60.0, is_patient=True)

    async with under_load(run):
        await more(run, AcceptedBy.PRIMARY, 4000)

    assert run.traffic.errors == 0
    assert failovers(run) == 0


async def test_clocks_that_jump_lose_nothing_and_renew_tokens(gateways: Gateways, tmp_path) -> None:
    clock = WallClock(tmp_path / "clock")
    for name in ("primary", "secondary", "gateway"):
        gateways.environments[name] = clock.environment
    run = await started(gateways, rate=2.0)

    async with under_load(run):
        # The clock steps forward and back: each process sees a step within a second, and tokens
        # must stay valid meanwhile.
        for seconds in (FIFTY_MINUTES, 0.0):
            await run.kill(run.primary)
            await more(run, AcceptedBy.BACKLOG)
            await clock.step(seconds)
            run.excuse(run.primary)  # locks end
            await run.primary.start()
            await run.gateway.until(lambda: states(run.gateway) == {"primary"}, PATIENCE)
            await more(run, AcceptedBy.PRIMARY)

    assert run.traffic.errors == 0


def states(gateway: GatewayProcess) -> set[str]:
    """The states that the entities are in, by the log."""
    moves = [line for line in gateway.log if line.get("event") == MOVED]
    last = {line["entity"]: line["after"] for line in moves}
    return {last.get(entity, "primary") for entity in ENTITIES}


async def test_a_primary_whose_clock_is_minutes_off_is_no_trouble(
    gateways: Gateways, tmp_path
) -> None:
    clock = WallClock(tmp_path / "clock")
    gateways.environments["primary"] = clock.environment
    run = await started(gateways, is_patient=True)

    async with under_load(run):
        for seconds in (TWENTY_MINUTES, -TWENTY_MINUTES, 0.0):
            await clock.step(seconds)
            await more(run, AcceptedBy.PRIMARY)

    assert run.traffic.errors == 0
    assert failovers(run) == 0


async def test_a_gateway_whose_clock_is_hours_behind_fails_nothing_over(
    gateways: Gateways, tmp_path
) -> None:
    """The primary takes its tokens for expired: that is a mistake and no outage."""
    clock = WallClock(tmp_path / "clock")
    gateways.environments["gateway"] = clock.environment
    run = await started(gateways, is_patient=True)

    async with under_load(run):
        await clock.step(-TWO_HOURS)
        await until(lambda: run.traffic.errors > 0)
        await clock.step(0.0)

    assert failovers(run) == 0
