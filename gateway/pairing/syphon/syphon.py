"""
Moves the backlog back to the primary: all backlog queues of the label, whichever gateway sent them.

A syphon runs inside the gateway or as a process of its own. Several may run at the same time, since
locks keep them from moving the same message. A syphon uses the entity states where it has them.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Final

import attrs
import trio

from gateway.capabilities import ReceivesAvailable
from gateway.domain import backlog
from gateway.domain.copies import Copies, CopyState
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
    SessionRequired,
)
from gateway.domain.events.gateway import SyphonFailed, SyphonStalled
from gateway.domain.health.backlog_model import BacklogModel
from gateway.domain.message import ReceiveMode
from gateway.domain.status.pair import Cause, Waiting
from gateway.extensions.listing import parts
from gateway.moments import Moments
from gateway.offering import offered
from gateway.pairing.depth import BacklogDepth
from gateway.pairing.options import SyphonOptions
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.backlog_message import BacklogQueueInfo, Progress
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.pairing.syphon.batch_window import most_of
from gateway.pairing.syphon.dead_letters import ExpiryRules
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.drain import MAX_SUSPENDED, Drain
from gateway.pairing.syphon.drained_queue import DrainedQueue, DrainKind, Drains
from gateway.pairing.syphon.grace import Grace
from gateway.pairing.syphon.pauses import Pauses
from gateway.pairing.syphon.primary_load import PrimaryLoad
from gateway.pairing.syphon.progress import ProgressReporter
from gateway.pairing.syphon.redelivery_guard import RedeliveryGuard
from gateway.ports import Broker, Observer, WallClock

PAGE: Final = 100
# A gateway uses up to 1000, and those of extensions. A namespace may create each queue that is
# asked for.
MOST_QUEUES: Final = 1000
MOST_MISSING: Final = 10  # consecutive indices without a queue, after which the search ends
# Seconds until the first search for queues that the configuration doesn't name, and between two.
# Each ends with a refusal, which RabbitMQ logs as an error.
FIRST_SEARCH: Final = 600.0
SEARCH: Final = 3600.0
LOOK: Final = 1.0  # seconds to find out by a receive whether a queue exists
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
    states: EntityStates | None = None
    # The backlog queues of the label by the configuration; None: it doesn't know the label.
    named: Sequence[EntityPath] | None = None
    pauses: Pauses = attrs.field(factory=Pauses)  # shared by the syphons of the process
    reports_progress: bool = True  # as events: found, moving, empty
    max_suspended: int = MAX_SUSPENDED  # handles per queue
    destination: Destination = attrs.field()
    model: BacklogModel = attrs.field(factory=BacklogModel)  # of the process, for `depth` alone
    depth: BacklogDepth = attrs.field()  # in a gateway that of the pair
    _drains: dict[str, Drains] = attrs.field(factory=dict, init=False)
    _copies: Copies = attrs.field(factory=Copies, init=False)
    _load: PrimaryLoad = attrs.field(init=False)
    _backoffs: EntityBackoffs = attrs.field(init=False)
    _wrong_macs: Grace = attrs.field(factory=Grace, init=False)
    _moments: Moments = attrs.field(init=False)
    _reporter: ProgressReporter = attrs.field(init=False)
    _rate: float | None = attrs.field(init=False)
    _progress: Progress | None = attrs.field(default=None, init=False)  # while it runs
    _next_search: float = attrs.field(default=-inf, init=False)  # by Trio's clock
    # True: messages wait and none has moved for `stall_after`; None: the syphon hasn't looked yet.
    stalled: bool | None = attrs.field(default=None, init=False)

    @destination.default
    def _destination(self) -> Destination:
        return Destination(primary=self.primary, observer=self.observer, rng=self.rng)

    @depth.default
    def _own_depth(self) -> BacklogDepth:
        return BacklogDepth(
            secondary=self.source,
            rotation=self,
            label=self.label,
            clock=self.clock,
            model=self.model,
            expiry_rules=ExpiryRules(self.primary),
        )

    def __attrs_post_init__(self) -> None:
        self._rate = self.options.max_drain_rate
        self._moments = Moments(self.clock)
        self._reporter = ProgressReporter(observer=self.observer, label=self.label)
        self._load = PrimaryLoad(
            primary=self.primary,
            rng=self.rng,
            attempt_timeout=self.options.attempt_timeout,
            probes=self.states is None,
        )
        self._backoffs = EntityBackoffs(
            rng=self.rng,
            observer=self.observer,
            largest=most_of(self.options.batch),
            gone_grace=self.options.gone_grace,
            states=self.states,
            pauses=self.pauses,
            load=self._load,
        )

    @property
    def rate(self) -> float | None:
        """The rate limit in messages a second; None: there is none."""
        return self._rate

    def limit_rate(self, rate: float | None) -> None:
        """Move at most `rate` messages a second from now on; None: no limit."""
        self._rate = rate
        if self._progress is not None:
            self._progress.rate = rate

    @property
    def backing_off(self) -> int:
        """The number of entities that back off now."""
        return self._backoffs.backing_off

    @property
    def copies(self) -> Mapping[CopyState, int]:
        """The number of backlog messages in each state of their way home."""
        return self._copies.counts()

    @property
    def queues(self) -> Sequence[EntityPath]:
        """The backlog queues that this syphon has found."""
        return [drain.at.queue for drain in self._drains.values()]

    @property
    def held(self) -> int:
        """
        The messages that the syphon has in hand, which are still on the backlog. Those that the
        primary has accepted may have left it.
        """
        return sum(count for state, count in self.copies.items() if state is not CopyState.SENT)

    async def _left(self) -> int | None:
        return await self.depth.left(self.held)

    def waiting(self) -> list[Waiting]:
        """The causes that keep messages on the backlog until `gone_grace` is over."""
        causes = (
            (Cause.GONE, self._backoffs.gone()),
            (Cause.WRONG_MAC, self._wrong_macs.lasting()),
        )
        grace = self.options.gone_grace
        return [
            Waiting(cause=cause, name=name, seconds=seconds, left=grace - seconds)
            for cause, found in causes
            for name, seconds in found.items()
            if seconds < grace
        ]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Move the backlog until cancelled; then release all locks.

        Every `rescan` seconds the syphon looks for new backlog queues and reads all depths, and
        reports `SyphonStalled` if messages wait and none moves. If the drains receive none of
        them, another syphon may have locked them, even one that was killed since: the event then
        waits until such locks have expired.
        """
        progress = self._progress = Progress(self._rate)
        if self.named is not None:
            self._next_search = trio.current_time() + FIRST_SEARCH
        async with trio.open_nursery() as nursery:
            await nursery.start(self._load.run)
            task_status.started()
            failures = 0
            reported = False
            while True:
                self._moments.now()  # only a clock that is read often shows its steps
                found = await self._poll_queues()
                failures = failures + 1 if found is None else 0
                for queue, info in (found or {}).items():
                    if queue.key not in self._drains:
                        drain = self._drains[queue.key] = self._drain(queue, progress)
                        nursery.start_soon(self._keep_draining, drain)
                    self._drains[queue.key].at.update(info)
                if found is not None:
                    self._watch_for_stall(found.values(), progress)
                    if self.reports_progress and not reported:
                        reported = True
                        nursery.start_soon(self._reporter.run, self._left, _sum(found))
                nursery.start_soon(self.destination.refresh)  # which may hang
                await trio.sleep(self._until_next_look(failures))

    def _until_next_look(self, failures: int) -> float:
        """Seconds until the next look; fewer after a failed one, without which no drain starts."""
        usual = min(self.options.rescan, self.options.stall_after)
        return min(usual, self.options.queue_retry.delay(failures, self.rng)) if failures else usual

    async def _keep_draining(self, drain: Drains) -> None:
        failures = 0
        while True:
            await self.destination.wait_known()  # without an answer no message could move anyway
            started = trio.current_time()
            try:
                error = await drain.run()
            except NotSupported as unreadable:  # a queue with sessions, in a namespace without any
                error = unreadable
            if isinstance(error, EntityNotFound):
                del self._drains[drain.at.queue.key]
                return
            # After a drain that worked for a while the pauses start at the shortest again.
            longest = self.options.queue_retry.cap
            failures = 1 if trio.current_time() - started > longest else failures + 1
            self.observer.report(SyphonFailed(queue=drain.at.queue, reason=str(error)))
            await trio.sleep(self.options.queue_retry.delay(failures, self.rng))

    async def _poll_queues(self) -> Mapping[EntityPath, BacklogQueueInfo] | None:
        """All backlog queues that exist, with their facts. None: the source doesn't answer."""
        prefix = backlog.listing_prefix(self.label)
        try:
            with trio.move_on_after(ASK_LIMIT):
                return await self._listed(prefix)
        except (NotAuthorized, NotSupported):
            return await self._tried()
        except BrokerError as error:
            self.observer.report(SyphonFailed(queue=EntityPath(prefix), reason=str(error)))
        return None

    @property
    def _most(self) -> int:
        return MOST_QUEUES + sum(len(kind.queues(self.label, self.source)) for kind in kinds())

    async def _listed(self, prefix: str) -> Mapping[EntityPath, BacklogQueueInfo]:
        found: dict[EntityPath, BacklogQueueInfo] = {}
        seen = 0
        while seen < self._most:
            page = await self.source.list_queues(prefix, skip=seen, top=PAGE)
            for info in page:
                if backlog.is_backlog(info.path):
                    lock = info.properties.lock_duration
                    found[info.path] = BacklogQueueInfo(depth=info.active, lock_duration=lock)
            seen += len(page)
            if len(page) < PAGE:
                break
        return found

    async def _tried(self) -> Mapping[EntityPath, BacklogQueueInfo]:
        """
        Without the right to list queues: ask for each queue that the configuration names, and now
        and then for others, as another gateway may use more.
        """
        found = {drain.at.queue: BacklogQueueInfo() for drain in self._drains.values()}
        for queue in self.named or ():
            if queue not in found and await self._is_there(queue):
                found[queue] = BacklogQueueInfo()
        if trio.current_time() >= self._next_search:
            pause = 0.0 if self.named is None else SEARCH
            self._next_search = trio.current_time() + pause
            await self._search(found)
        return found

    async def _search(self, found: dict[EntityPath, BacklogQueueInfo]) -> None:
        """
        Add the queues that exist and that the configuration doesn't name: by their indices, until
        several in a row fail, or there are `MOST_QUEUES`, and those of kinds of their own.
        """
        named, is_wanted = self.named or (), self.named is None
        most = MOST_MISSING if is_wanted else 1
        index = missing = 0
        while missing < most and len(found) < MOST_QUEUES:
            queue = backlog.queue_name(self.label, index)
            index += 1
            if queue in named:
                continue
            if queue not in found and not await self._is_there(queue, is_wanted=is_wanted):
                missing += 1
                continue
            missing = 0
            found[queue] = BacklogQueueInfo()
        for queue in chain.from_iterable(each.queues(self.label, self.source) for each in kinds()):
            if queue not in found and not await self._is_there(queue, is_wanted=False):
                break
            found[queue] = BacklogQueueInfo()

    async def _is_there(self, queue: EntityPath, *, is_wanted: bool = True) -> bool:
        """True if the queue exists. A refusal to read one that need not exist is no fault."""
        opened = False
        try:
            with trio.move_on_after(LOOK):
                async with self.source.open_receiver(queue, ReceiveMode.PEEK_LOCK) as receiver:
                    opened = True
                    knows = offered(receiver, ReceivesAvailable)
                    await (receiver.receive if knows is None else knows.receive_available)(1)
        except EntityNotFound:
            return False
        except SessionRequired:
            return any(kind.covers(queue) for kind in kinds())
        except BrokerError as error:
            if is_wanted or not isinstance(error, NotAuthorized):
                self.observer.report(SyphonFailed(queue=queue, reason=str(error)))
            return False
        return opened

    def _watch_for_stall(self, found: Collection[BacklogQueueInfo], progress: Progress) -> None:
        pending = sum(info.depth or 0 for info in found)
        if pending == 0 or self.pauses.holds_back:  # a pause is no stall
            progress.record_move()
            self.stalled = False
            return
        still = progress.record_waiting()
        locked = 0.0 if progress.has_received else max(info.longest_lock for info in found)
        self.stalled = still >= self.options.stall_after + locked
        if self.stalled:
            self.observer.report(SyphonStalled(pending=pending, seconds=still))

    def _drain(self, queue: EntityPath, progress: Progress) -> Drains:
        at = DrainedQueue(
            primary=self.primary,
            source=self.source,
            queue=queue,
            envelope=self.envelope,
            destination=self.destination,
            options=self.options,
            backoffs=self._backoffs,
            copies=self._copies,
            progress=progress,
            wrong_macs=self._wrong_macs,
            redelivery_guard=RedeliveryGuard(began=progress.began, rng=self.rng),
            clock=self.clock,
            moments=self._moments,
            observer=self._reporter,
            pauses=self.pauses,
        )
        own = next((kind for kind in kinds() if kind.covers(queue)), None)
        return Drain(at=at, max_suspended=self.max_suspended) if own is None else own.make(at)


def kinds() -> Sequence[DrainKind]:
    """The backlog queues that need a drain of their own."""
    return parts("drains")


def _sum(found: Mapping[EntityPath, BacklogQueueInfo]) -> int | None:
    """The number of messages in these queues. None: not known."""
    depths = [info.depth for info in found.values()]
    return None if None in depths else sum(depth or 0 for depth in depths)
