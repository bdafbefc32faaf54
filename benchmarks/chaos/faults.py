"""Injects faults into an installation, records them, and names the copies that they excuse."""

import json
import os
import resource
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from benchmarks.chaos.scenario import ON_CLOCKS, ON_PROCESSES, Fault, Kind
from benchmarks.chaos.servers import ClusterServer, RabbitServer
from benchmarks.chaos.topologies import MOST_IN_FLIGHT, Installation
from benchmarks.traffic import OpenLoop
from gateway.checker.history import BUSY, FaultBegan, FaultEnded, FaultTarget, Killed, VolumeLost
from gateway.checker.operations import Record
from gateway.demo.machines import DemoMachine
from tests.harness import amqp_faults
from tests.harness.chaos_proxy import (
    BlackHole,
    Corrupt,
    DeadLinks,
    HalfOpen,
    Hold,
    Late,
    Link,
    Pass,
    Refuse,
    ResetAfter,
    ResetBefore,
    ResetDuring,
    Slow,
    Sometimes,
    SwallowResponse,
    Truncate,
)
from tests.harness.rabbitmq_cluster import Cluster
from tests.harness.syscalls import injected
from tests.harness.wall_clock import WallClock

_LONGEST_FILE: Final = 4096  # bytes: each of a broker's files is longer
_SLOW_SYNCS: Final = ("fdatasync:delay_enter=300000", "fsync:delay_enter=300000")  # microseconds
_IN_THEIR_TERMS: Final = frozenset({Kind.BUSY, Kind.BUSY_LINKS, Kind.THROTTLED})
_HEAD: Final = (
    b"HTTP/1.1 %s\r\nRetry-After: %d\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
)
# As both services write it: Service Bus its text, Storage Queue its code.
_ERROR: Final = b"<Error><Code>ServerBusy</Code><Detail>The server is busy.</Detail></Error>"
_PAGE: Final = b"<html><body>Down for maintenance</body></html>"


@attrs.frozen
class TurnedAway(Pass):
    """Answers each HTTP request that the client should come back so many seconds later."""

    status: bytes
    seconds: int = 1
    body: bytes = _ERROR

    async def up(self, link: Link, data: bytes) -> None:
        answer = _HEAD % (self.status, self.seconds, len(self.body), self.body)
        await link.send_down(answer)
        link.close()


HARM: Final[Mapping[Kind, Pass]] = {
    Kind.REFUSED: Refuse(),
    Kind.RESET_BEFORE: ResetBefore(),
    Kind.RESET_DURING: ResetDuring(40),
    Kind.RESET_AFTER: ResetAfter(),
    Kind.SWALLOWED: SwallowResponse(),
    Kind.TRUNCATED: Truncate(12),
    Kind.HELD: Hold(),
    Kind.BLACK_HOLE: BlackHole(),
    Kind.HALF_OPEN: HalfOpen(),
    Kind.SLOW: Slow(size=512, delay=0.05, jitter=0.05),
    Kind.CORRUPT: Corrupt(),
    Kind.BUSY: TurnedAway(b"503 Service Unavailable"),
    Kind.BUSY_LINKS: amqp_faults.Detach(amqp_faults.BUSY),
    Kind.PROXY_PAGE: TurnedAway(b"503 Service Unavailable", seconds=3600, body=_PAGE),
    Kind.THROTTLED: TurnedAway(b"429 Too Many Requests"),
    Kind.DETACHED: amqp_faults.Detach(),
    Kind.DETACHED_LATE: amqp_faults.DetachInsteadOfAnswer(),
    Kind.NO_CREDIT: amqp_faults.NoCredit(),
}
# These faults keep bytes back for ever: a stream with such a hole must not go on.
WITH_HOLES: Final = frozenset({Kind.BLACK_HOLE, Kind.HALF_OPEN, Kind.NO_CREDIT})
# These faults must see a connection from its begin on.
FROM_THE_BEGIN: Final = frozenset(
    {Kind.BUSY_LINKS, Kind.DETACHED, Kind.DETACHED_LATE, Kind.NO_CREDIT}
)


@attrs.define(eq=False)
class Nemesis:
    """Injects the faults of a scenario; `records` has when."""

    installation: Installation
    loops: Sequence[OpenLoop]
    records: list[Record] = attrs.field(factory=list)
    _struck: int = attrs.field(default=0, init=False)  # nodes of a cluster
    redriven: int = 0  # dead letters that went home
    _number: int = attrs.field(default=0, init=False)
    # By target; a clock and its process are harmed at the same time.
    _one_by_one: dict[tuple[FaultTarget, bool], trio.Lock] = attrs.field(
        factory=lambda: defaultdict(trio.Lock), init=False
    )

    @property
    def losses(self) -> list[Record]:
        """The losses of the primary's volume."""
        return [one for one in self.records if isinstance(one, VolumeLost)]

    async def run(self, began: float) -> None:
        """Return when all faults are over. `began`: when the load did."""
        async with trio.open_nursery() as nursery:
            for fault in self.installation.scenario.faults:
                for begin, end in fault.spans:
                    nursery.start_soon(self._strike, fault, began + begin, began + end)

    async def _strike(self, fault: Fault, begin: float, end: float) -> None:
        """
        Strike at `begin`; strikes of one kind on one target wait for each other.

        On a busy machine the start of a process may last until the next strike is due.
        """
        await trio.sleep_until(begin)
        async with self._one_by_one[fault.target, fault.kind in ON_CLOCKS]:
            await self._harm(fault, end)

    async def _harm(self, fault: Fault, end: float) -> None:
        self._number += 1
        name = str(self._number)
        kind = BUSY if fault.kind in _IN_THEIR_TERMS else fault.kind.value
        self.records.append(
            FaultBegan(at=trio.current_time(), fault=name, kind=kind, target=fault.target)
        )
        if fault.kind in ON_PROCESSES:
            await self._harm_processes(fault, end)
        elif fault.kind in ON_CLOCKS:
            await self._step_clock(fault, end)
        else:
            await self._harm_bytes(fault, end)
        self.records.append(FaultEnded(at=trio.current_time(), fault=name))

    async def _harm_bytes(self, fault: Fault, end: float) -> None:
        proxy = self.installation.namespace(fault.target).proxy
        assert proxy is not None
        if fault.kind is Kind.STUCK:
            proxy.fault = DeadLinks(frozenset(proxy.links))
            await trio.sleep_until(end)
            return  # only another connection helps
        if fault.kind is Kind.LIMITED:
            await self._limit(fault.target, end)
            return
        harm = HARM[fault.kind] if fault.late is None else Late(*fault.late)
        if fault.probability < 1.0:
            harm = Sometimes(fault=harm, probability=fault.probability)
        proxy.fault = harm
        if fault.kind in FROM_THE_BEGIN:
            proxy.reset_all()
        await trio.sleep_until(end)
        proxy.fault = Pass()
        if fault.kind in WITH_HOLES:
            proxy.reset_all()

    async def _limit(self, target: FaultTarget, end: float) -> None:
        server = self.installation.namespace(target).server
        assert isinstance(server, RabbitServer)
        await server.refuse_connections()
        await trio.sleep_until(end)
        await server.allow_connections()

    async def _step_clock(self, fault: Fault, end: float) -> None:
        clocks = self.installation.clocks_of(fault.target)
        await _set_all(clocks, fault.step if fault.kind is Kind.CLOCK_AHEAD else -fault.step)
        await trio.sleep_until(end)
        await _set_all(clocks, 0.0)

    async def _harm_processes(self, fault: Fault, end: float) -> None:
        match fault.kind:
            case Kind.SLOW_SYNC:
                async with injected(self._pid(fault.target), *_SLOW_SYNCS):
                    await trio.sleep_until(end)
            case Kind.WRONG_KEY:
                await self._mistake_key(end)
            case Kind.KILLED:
                await self._kill(fault.target, end)
            case Kind.EMPTIED:
                await self._empty(fault.target, end)
            case Kind.NODE_KILLED | Kind.NODE_RESTARTED:
                await self._end_node(fault, end)
            case Kind.NODE_CUT_OFF:
                await self._cut_node_off(fault.target, end)
            case Kind.FROZEN:
                pid = self._pid(fault.target)
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep_until(end)
                os.kill(pid, signal.SIGCONT)
            case _:
                await self._fill_disk(fault.target, end)

    async def _mistake_key(self, end: float) -> None:
        """Raises AssertionError if `pairgate redrive` doesn't bring all home."""
        await self.installation.mistake_key()
        await trio.sleep_until(end)
        await self.installation.mend_key()
        syphon = self.installation.syphons[0]
        code, told = await syphon.ask("redrive", "--execute")
        assert code == 0, told
        self.redriven += json.loads(told)["moved"]

    async def _kill(self, target: FaultTarget, end: float) -> None:
        """All syphons at once, where syphons are meant."""
        machines = self._machines(target)
        waiting = sum(loop.under_way for loop in self.loops)
        for name in [machine.name for machine in machines] or [target.value]:
            in_flight = MOST_IN_FLIGHT + (0 if target is FaultTarget.SYPHON else waiting)
            self.records.append(Killed(at=trio.current_time(), process=name, in_flight=in_flight))
        if not machines:
            server = self.installation.namespace(target).server
            await server.kill()
            await trio.sleep_until(end)
            await server.start()
            return
        for machine in machines:
            await machine.kill()
        await trio.sleep_until(end)
        for machine in machines:
            await machine.start(self.installation.fleet.nursery)

    async def _empty(self, target: FaultTarget, end: float) -> None:
        """A namespace comes back without its volume when half of the time is over."""
        namespace = self.installation.namespace(target)
        killed = trio.current_time()
        in_flight = MOST_IN_FLIGHT + sum(loop.under_way for loop in self.loops)
        self.records.append(Killed(at=killed, process=target.value, in_flight=in_flight))
        await namespace.server.kill()
        namespace.server.lose_volume()
        await trio.sleep_until((killed + end) / 2)
        self.records.append(VolumeLost(at=trio.current_time(), since=killed))
        await namespace.server.start()
        await trio.sleep_until(end)
        await namespace.make_queues()

    async def _end_node(self, fault: Fault, end: float) -> None:
        target = fault.target
        cluster, node = self._next_node(target)
        in_flight = MOST_IN_FLIGHT + sum(loop.under_way for loop in self.loops)
        self.records.append(
            Killed(at=trio.current_time(), process=f"{target.value} {node}", in_flight=in_flight)
        )
        await (cluster.kill if fault.kind is Kind.NODE_KILLED else cluster.stop)(node)
        await trio.sleep_until(end)
        await cluster.start(node)
        await cluster.wait_whole()

    async def _cut_node_off(self, target: FaultTarget, end: float) -> None:
        cluster, node = self._next_node(target)
        cluster.cut_off(node)
        await trio.sleep_until(end)
        cluster.heal(node)
        await cluster.wait_whole()

    def _next_node(self, target: FaultTarget) -> tuple[Cluster, str]:
        server = self.installation.namespace(target).server
        assert isinstance(server, ClusterServer)
        names = list(server.cluster.nodes)
        self._struck += 1
        return server.cluster, names[(self._struck - 1) % len(names)]

    async def _fill_disk(self, target: FaultTarget, end: float) -> None:
        """A broker that can't write may end itself; then it is started again, as a service is."""
        server = self.installation.namespace(target).server
        pid = server.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_LONGEST_FILE, before[1]))
        await trio.sleep_until(end)
        if server.running:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        else:
            await server.start()

    def _machines(self, target: FaultTarget) -> list[DemoMachine]:
        if target is FaultTarget.SYPHON:
            return self.installation.syphons
        return [self.installation.gateway] if target is FaultTarget.GATEWAY else []

    def _pid(self, target: FaultTarget) -> int:
        machines = self._machines(target)
        return machines[0].pid if machines else self.installation.namespace(target).server.pid


async def _set_all(clocks: Sequence[WallClock], ahead: float) -> None:
    async with trio.open_nursery() as nursery:
        for clock in clocks:
            nursery.start_soon(clock.step, ahead)
