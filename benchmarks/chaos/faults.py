"""Does harm to a site, records it, and knows what copies it excuses."""

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from benchmarks.chaos.scenario import ON_PROCESSES, Fault, Kind
from benchmarks.chaos.topologies import IN_HAND, SYPHON_BATCH, Site
from benchmarks.traffic import OpenLoop, Send
from gateway.demo.machines import Machine
from gateway.domain.conduct import BUSY, FaultBegan, FaultEnded, Killed, Swallowed, Target
from gateway.domain.history import Record, Uncertain
from gateway.domain.message import Leg
from gateway.testing.chaos_proxy import (
    BlackHole,
    Corrupt,
    HalfOpen,
    Hold,
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

_LONGEST_FILE: Final = 4096  # bytes: each of a broker's files is longer
_NOT_NOW: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


@attrs.frozen
class Busy(Pass):
    """In terms of HTTP: whoever asks is told to come back a second later."""

    async def up(self, link: Link, data: bytes) -> None:
        await link.send_down(_NOT_NOW)
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
    Kind.BUSY: Busy(),
}


@attrs.define(eq=False)
class Nemesis:
    """Harms a site as its scenario says; `records` has when."""

    site: Site
    loops: Sequence[OpenLoop]
    records: list[Record] = attrs.field(factory=list)
    _number: int = attrs.field(default=0, init=False)
    _one_by_one: dict[Target, trio.Lock] = attrs.field(
        factory=lambda: {target: trio.Lock() for target in Target}, init=False
    )

    async def run(self, began: float) -> None:
        """Return when all faults are over. `began`: when the load did."""
        async with trio.open_nursery() as nursery:
            for fault in self.site.scenario.faults:
                for begin, end in fault.spans:
                    nursery.start_soon(self._strike, fault, began + begin, began + end)

    async def _strike(self, fault: Fault, begin: float, end: float) -> None:
        """On a busy machine a process may start for so long that the next time has come."""
        await trio.sleep_until(begin)
        async with self._one_by_one[fault.target]:
            await self._harm(fault, end)

    async def _harm(self, fault: Fault, end: float) -> None:
        self._number += 1
        name = str(self._number)
        kind = BUSY if fault.kind is Kind.BUSY else fault.kind.value
        self.records.append(
            FaultBegan(at=trio.current_time(), fault=name, kind=kind, target=fault.target)
        )
        if fault.kind in ON_PROCESSES:
            await self._harm_processes(fault, end)
        else:
            await self._harm_bytes(fault, end)
        self.records.append(FaultEnded(at=trio.current_time(), fault=name))

    async def _harm_bytes(self, fault: Fault, end: float) -> None:
        proxy = self.site.namespace(fault.target).proxy
        assert proxy is not None
        harm = HARM[fault.kind]
        if fault.probability < 1.0:
            harm = Sometimes(fault=harm, probability=fault.probability)
        proxy.fault = harm
        await trio.sleep_until(end)
        proxy.fault = Pass()
        if fault.kind in {Kind.BLACK_HOLE, Kind.HALF_OPEN}:
            proxy.reset_all()  # a stream with a hole in it must not go on

    async def _harm_processes(self, fault: Fault, end: float) -> None:
        match fault.kind:
            case Kind.KILLED:
                await self._kill(fault.target, end)
            case Kind.FROZEN:
                pid = self._pid(fault.target)
                os.kill(pid, signal.SIGSTOP)
                await trio.sleep_until(end)
                os.kill(pid, signal.SIGCONT)
            case _:
                await self._fill_disk(fault.target, end)

    async def _kill(self, target: Target, end: float) -> None:
        """All syphons at once, where syphons are meant."""
        machines = self._machines(target)
        waiting = sum(loop.under_way for loop in self.loops)
        for name in [machine.name for machine in machines] or [target.value]:
            in_hand = IN_HAND + (0 if target is Target.SYPHON else waiting)
            self.records.append(Killed(at=trio.current_time(), process=name, in_flight=in_hand))
        if not machines:
            server = self.site.namespace(target).server
            await server.kill()
            await trio.sleep_until(end)
            await server.start()
            return
        for machine in machines:
            await machine.kill()
        await trio.sleep_until(end)
        for machine in machines:
            await machine.start(self.site.fleet.nursery)

    async def _fill_disk(self, target: Target, end: float) -> None:
        """A broker that can't write may end itself; then it is started again, as a service is."""
        server = self.site.namespace(target).server
        pid = server.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (_LONGEST_FILE, before[1]))
        await trio.sleep_until(end)
        if server.running:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        else:
            await server.start()

    def _machines(self, target: Target) -> list[Machine]:
        if target is Target.SYPHON:
            return self.site.syphons
        return [self.site.gateway] if target is Target.GATEWAY else []

    def _pid(self, target: Target) -> int:
        machines = self._machines(target)
        return machines[0].pid if machines else self.site.namespace(target).server.pid


def excuses(
    sends: Mapping[str, Sequence[Send]],
    faults: Sequence[Record],
    held: Sequence[tuple[float, str]],
    over: float,
) -> list[Record]:
    """
    Who knows of which messages that one more copy is legal.

    `sends` by entity; `held` has when a syphon had no answer for a chunk of that entity. A send
    that met a fault may have been done by whoever never answered. For the whole run, the checker
    counts a chunk for each; of a single message nobody outside knows whether it was among them.
    """
    found: list[Record] = []
    began = {one.fault: one for one in faults if isinstance(one, FaultBegan)}
    for ended in (one for one in faults if isinstance(one, FaultEnded)):
        fault = began[ended.fault]
        met = [
            send.message_id
            for each in sends.values()
            for send in each
            if send.due <= ended.at and send.answered >= fault.at
        ]
        found.append(Swallowed(at=ended.at, messages=len(met)))
        found += [Uncertain(at=ended.at, message_id=one) for one in met]
        if fault.target is not Target.PRIMARY:
            found.append(Swallowed(at=ended.at, messages=IN_HAND))
            found += _diverted(sends, ended.at)
    for at, entity in held:
        found.append(Swallowed(at=min(at, over), messages=SYPHON_BATCH))
        found += _diverted({entity: sends.get(entity, ())}, min(at, over))
    return found


def _diverted(sends: Mapping[str, Sequence[Send]], at: float) -> list[Record]:
    return [
        Uncertain(at=at, message_id=send.message_id)
        for each in sends.values()
        for send in each
        if send.leg is not Leg.PRIMARY and send.due <= at
    ]
