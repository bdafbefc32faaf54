"""
Moves the backlog back to the primary: every backlog queue of the label, whoever filled it.

Runs inside the gateway or as a process of its own. Several may run: locks make them compete
safely. It doesn't need the failover's standings, and uses them where it has them.
"""

import random
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.domain.events import SyphonFailed, SyphonStalled
from gateway.domain.message import ReceiveMode
from gateway.pairing.caution import Caution
from gateway.pairing.drain import Drain
from gateway.pairing.grace import Grace
from gateway.pairing.holds import Holds
from gateway.pairing.options import SyphonOptions
from gateway.pairing.standings import Standings
from gateway.pairing.transfer import Progress, Transferred
from gateway.ports import Broker, Observer, WallClock

PAGE: Final = 100
ROW_OF_MISSING: Final = 10  # indices without a queue until the search ends
LOOK: Final = 1.0  # seconds to see whether a queue is there by receiving from it
ASK_LIMIT: Final = 30.0


@attrs.define(eq=False, kw_only=True)
class Syphon:
    """Drains all backlog queues of one label on `source`."""

    primary: Broker
    source: Broker
    label: str
    options: SyphonOptions
    envelope: Envelope
    clock: WallClock
    rng: random.Random
    observer: Observer
    standings: Standings | None = None
    _drains: dict[str, Drain] = attrs.field(factory=dict, init=False)
    _transferred: Transferred = attrs.field(factory=Transferred, init=False)
    _holds: Holds = attrs.field(init=False)
    _wrong_macs: Grace = attrs.field(factory=Grace, init=False)

    def __attrs_post_init__(self) -> None:
        self._holds = Holds(
            rng=self.rng,
            observer=self.observer,
            largest=self.options.batch,
            standings=self.standings,
        )

    @property
    def held(self) -> int:
        """How many entities rest now."""
        return self._holds.resting

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Live until cancelled; then locks in hand are given back.

        Looks for new backlog queues and at the depth of all of them again and again: pending
        messages that don't move are an event, whatever the drains believe.
        """
        progress = Progress(self.options.max_drain_rate)
        async with trio.open_nursery() as nursery:
            task_status.started()
            failures = 0
            while True:
                depths = await self._look()
                failures = failures + 1 if depths is None else 0
                for queue, depth in (depths or {}).items():
                    if queue.key not in self._drains:
                        drain = self._drains[queue.key] = self._drain(queue, progress)
                        nursery.start_soon(self._keep_draining, drain)
                    self._drains[queue.key].depth = depth
                if depths is not None:
                    self._watch_for_stall(depths, progress)
                await trio.sleep(self._until_next_look(failures))

    def _until_next_look(self, failures: int) -> float:
        """Soon after one that told nothing: at the start nothing is drained without it."""
        usual = min(self.options.rescan, self.options.stall_after)
        return min(usual, self.options.queue_retry.delay(failures, self.rng)) if failures else usual

    async def _keep_draining(self, drain: Drain) -> None:
        failures = 0
        while True:
            started = trio.current_time()
            error = await drain.run()
            if isinstance(error, EntityNotFound):
                del self._drains[drain.queue.key]
                return
            # A drain that worked for a while begins anew with short pauses.
            longest = self.options.queue_retry.cap
            failures = 1 if trio.current_time() - started > longest else failures + 1
            self.observer.report(SyphonFailed(queue=drain.queue, reason=str(error)))
            await trio.sleep(self.options.queue_retry.delay(failures, self.rng))

    async def _look(self) -> Mapping[EntityPath, int | None] | None:
        """All backlog queues that exist, with their depth; None when nobody can say now."""
        prefix = backlog.queue_prefix(self.label)
        try:
            with trio.move_on_after(ASK_LIMIT):
                return await self._listed(prefix)
        except (NotAuthorized, NotSupported):
            return await self._tried()
        except BrokerError as error:
            self.observer.report(SyphonFailed(queue=EntityPath(prefix), reason=str(error)))
        return None

    async def _listed(self, prefix: str) -> Mapping[EntityPath, int | None]:
        found: dict[EntityPath, int | None] = {}
        seen = 0
        while True:
            page = await self.source.list_queues(prefix, skip=seen, top=PAGE)
            found.update({info.path: info.active for info in page})
            seen += len(page)
            if len(page) < PAGE:
                return found

    async def _tried(self) -> Mapping[EntityPath, int | None]:
        """Without the right to list: try indices until ten in a row are missing."""
        found: dict[EntityPath, int | None] = {}
        index = missing = 0
        while missing < ROW_OF_MISSING:
            queue = backlog.queue_name(self.label, index)
            if queue.key in self._drains or await self._is_there(queue):
                found[queue] = None
                missing = 0
            else:
                missing += 1
            index += 1
        return found

    async def _is_there(self, queue: EntityPath) -> bool:
        opened = False
        try:
            with trio.move_on_after(LOOK):
                async with self.source.open_receiver(queue, ReceiveMode.PEEK_LOCK) as receiver:
                    opened = True
                    await receiver.receive(1)
        except EntityNotFound:
            return False
        except BrokerError as error:
            self.observer.report(SyphonFailed(queue=queue, reason=str(error)))
            return False
        return opened

    def _watch_for_stall(self, depths: Mapping[EntityPath, int | None], progress: Progress) -> None:
        pending = sum(depth or 0 for depth in depths.values())
        if pending == 0:
            progress.note()
        elif (still := progress.note_waiting()) >= self.options.stall_after:
            self.observer.report(SyphonStalled(pending=pending, seconds=still))

    def _drain(self, queue: EntityPath, progress: Progress) -> Drain:
        return Drain(
            primary=self.primary,
            source=self.source,
            queue=queue,
            envelope=self.envelope,
            options=self.options,
            holds=self._holds,
            transferred=self._transferred,
            progress=progress,
            wrong_macs=self._wrong_macs,
            caution=Caution(began=progress.began, rng=self.rng),
            clock=self.clock,
            observer=self.observer,
        )
