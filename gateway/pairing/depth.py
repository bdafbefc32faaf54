"""
Reads the depth and age of the backlog from the secondary, at bounded cost.

The figures of the local spool are in `app.spooling`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from math import inf
from typing import Final, Protocol

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain import backlog
from gateway.domain.backoff import jittered
from gateway.domain.dead_letters import DeadLetters
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.domain.health.backlog_model import BacklogModel, DepthReading
from gateway.domain.health.depth_history import DepthHistory, DepthSample, QueueDepth
from gateway.domain.health.heartbeats import SyphonsSeen
from gateway.offering import offered
from gateway.pairing.records.reader import RecordReader
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.dead_letters import ExpiryRules, count_dead_letters
from gateway.ports import Broker, WallClock

PAGE: Final = 100
MOST_QUEUES: Final = 1000
# Each request is billed. Seconds between two readings: with a backlog, or perhaps one; without.
SOON: Final = 10.0
LATER: Final = 60.0
# Seconds between two counts of the messages alone, while they change and somebody asks: the age
# that a depth has at most where other processes divert or move, too.
OFTEN: Final = 2.0
COUNT_LIMIT: Final = 5.0  # seconds
# Seconds for which messages may stay locked for a consumer of another process that is gone.
OTHERS_ABSENT: Final = 60.0
# Of samples in an outage.
EVERY: Final = 60.0  # seconds: each reading is billed
JITTER: Final = 0.2
ANSWER_LIMIT: Final = 10.0
NOT_TOLD: Final = "the secondary doesn't report its depth"
OTHERS_RECEIVE: Final = (
    "other processes receive, and the secondary doesn't count what they have locked"
)


@attrs.frozen(kw_only=True)
class Reading:
    """
    The state of the backlog at the date `at`, as the secondary reported it. None: not reported.

    A secondary that counts only unlocked messages (RabbitMQ without `management`) doesn't know how
    many messages other processes have locked: while these have consumers, `pending` is None.
    """

    at: datetime | None = None
    pending: int | None = None  # messages
    lag: float = 0.0  # seconds: the maximum age of the counts when reported
    locked_here: int = 0  # part of `pending` that the secondary doesn't count: locked by us
    consumers: bool = False  # other processes receive from the backlog
    oldest_age: float | None = None  # seconds
    dead_letters: DeadLetters = attrs.field(factory=DeadLetters)
    queues: Mapping[str, QueueDepth] = attrs.field(factory=dict)  # each by its name
    syphons: SyphonsSeen = attrs.field(factory=SyphonsSeen)  # of all processes


class HasQueues(Protocol):
    """A source of backlog queues where the secondary can't list its queues."""

    @property
    def queues(self) -> Sequence[EntityPath]: ...


@attrs.define(eq=False, kw_only=True)
class BacklogDepth:
    """The messages in all backlog queues of one label, whichever gateway diverted them."""

    secondary: Broker
    rotation: HasQueues
    label: str
    clock: WallClock
    ordered: Sequence[EntityPath] = ()  # queues that are inspected as well, where they exist
    page: int = PAGE  # queues per request
    most_queues: int = MOST_QUEUES  # further ones aren't counted
    expiry_rules: ExpiryRules | None = None  # of the primary; None: each expired message counts
    history: DepthHistory = attrs.field(factory=DepthHistory)
    model: BacklogModel = attrs.field(factory=BacklogModel, on_setattr=attrs.setters.frozen)
    # Of the records of all processes; None: one of its own.
    reader: RecordReader | None = attrs.field(default=None, on_setattr=attrs.setters.frozen)
    _reader: RecordReader = attrs.field(init=False)
    _last: Reading = attrs.field(factory=Reading, init=False)
    _asked: float = attrs.field(default=-inf, init=False)  # trio.current_time()
    _counted_at: float = attrs.field(default=-inf, init=False)  # the same, of the last count
    _dead_lettered: int = attrs.field(default=0, init=False)  # as given to the last `read`
    _others_until: float = attrs.field(default=-inf, init=False)  # by Trio's clock
    _asking: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @_reader.default
    def _make_reader(self) -> RecordReader:
        if self.reader is not None:
            return self.reader
        return RecordReader(secondary=self.secondary, label=self.label, clock=self.clock)

    async def read(self, seconds: float, *, troubled: bool, dead_lettered: int = 0) -> Reading:
        """
        Return the last reading, or a new one if it is due and the secondary answers within
        `seconds`. Concurrent callers share one reading. The model learns of each count.

        `troubled`: messages may be diverted now. `dead_lettered`: the number of messages that this
        process has dead-lettered so far; a new reading is due when it has changed.
        """
        self._hear()
        with self._answered_within(seconds):
            async with self._asking:
                now = trio.current_time()
                busy = troubled or self.model.changes or bool(self._last.pending)
                pause = SOON if busy else LATER
                changed = dead_lettered != self._dead_lettered
                if changed or now >= self._asked + pause:
                    self._dead_lettered = dead_lettered
                    await self._refresh()
                elif busy and now >= self._counted_at + OFTEN:
                    await self._count()
        return self._last

    async def ask(self, seconds: float) -> Reading | None:
        """Return a new reading; None: the secondary didn't answer within `seconds`."""
        with self._answered_within(seconds):
            async with self._asking:
                return self._last if await self._refresh() else None
        return None

    def _hear(self) -> None:
        """Let the model know what the other processes tell to have diverted and moved."""
        known, own = self._reader.known, self._reader.process
        if known.unknown:
            return
        told = {
            each.process: each.changes
            for each in (*known.ended, *known.alive)
            if each.process != own
        }
        self.model.heard(told, self.clock())

    @property
    def last(self) -> Reading:
        """The last reading; nobody is asked."""
        return self._last

    @contextmanager
    def _answered_within(self, seconds: float) -> Iterator[None]:
        """
        Cancel the body after `seconds`; the depth is then unknown, and noted as unknown in the
        history.
        """
        with trio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            self.model.unanswered()
            self.history.record(DepthSample(at=self.clock()))

    async def _refresh(self) -> bool:
        self._asked = trio.current_time()
        told = await self._ask()
        if told is None:
            self.history.record(DepthSample(at=self.clock()))
            return False
        self._last = told
        self.history.record(
            DepthSample(
                at=told.at or self.clock(),
                pending=told.pending,
                oldest_age=told.oldest_age,
                queues=told.queues,
            )
        )
        return True

    async def _count(self) -> tuple[Reading, Sequence[EntityInfo]] | None:
        """Count the messages for the model. None: the secondary doesn't answer."""
        self._counted_at = trio.current_time()
        began = self.clock()
        infos = await self._infos()
        if infos is None:
            self.model.unanswered()
            return None
        told = self._counted(infos, began)
        reading = DepthReading(
            began=began,
            ended=self.clock(),
            pending=told.pending,
            lag=timedelta(seconds=told.lag),
            reason=OTHERS_RECEIVE if told.consumers else NOT_TOLD,
        )
        self.model.read(reading)
        return told, infos

    async def left(self, held: int = 0) -> int | None:
        """
        Count the messages for the model; return the depth that it then has, of which `held` are in
        the hands of this process's syphon. None: not known; 0: the secondary itself says so.
        """
        with trio.move_on_after(COUNT_LIMIT) as scope:
            async with self._asking:
                await self._count()
        if scope.cancelled_caught:
            self.model.unanswered()
        found = self.model.depth(self.clock(), held=held)
        return None if found.pending == 0 and not found.is_empty else found.pending

    async def _infos(self) -> Sequence[EntityInfo] | None:
        try:
            return await self._listed()
        except (NotAuthorized, NotSupported):
            return await self._inspected()
        except BrokerError:
            return None

    async def _ask(self) -> Reading | None:
        found = await self._count()
        if found is None:
            return None
        told, infos = found
        ages = await self._ages(infos)
        known = [age for age in ages.values() if age is not None]
        return attrs.evolve(
            told,
            # An age that isn't known may be the greatest.
            oldest_age=max(known) if known and None not in ages.values() else None,
            dead_letters=await count_dead_letters(
                self.secondary, infos, self.clock(), self.expiry_rules
            ),
            queues={
                info.path.name: QueueDepth(
                    pending=_depth_of(info) if told.pending is not None else None,
                    oldest_age=ages.get(info.path.name),
                )
                for info in infos
            },
            syphons=(await self._reader.look()).syphons_seen,
        )

    def _counted(self, infos: Sequence[EntityInfo], began: datetime) -> Reading:
        if any(info.other_consumers for info in infos):
            self._others_until = trio.current_time() + OTHERS_ABSENT
        others = trio.current_time() < self._others_until
        held = sum(info.locked_here for info in infos)
        depths = [info.active for info in infos]
        pending = None
        if infos and None not in depths and not others:
            pending = sum(depth or 0 for depth in depths) + held
        lag = max((info.lag for info in infos), default=0.0)
        return Reading(
            at=began - timedelta(seconds=lag),
            pending=pending,
            lag=lag,
            locked_here=held,
            consumers=others,
        )

    async def _listed(self) -> Sequence[EntityInfo]:
        found: list[EntityInfo] = []
        seen = 0
        while seen < self.most_queues:
            page = await self.secondary.list_queues(
                backlog.listing_prefix(self.label), skip=seen, top=self.page
            )
            found += [info for info in page if backlog.is_backlog(info.path)]
            seen += len(page)
            if len(page) < self.page:
                break
        return found

    async def _inspected(self) -> Sequence[EntityInfo]:
        """The queues that this gateway uses, where it has no right to list queues."""
        found = []
        for queue in dict.fromkeys((*self.rotation.queues, *self.ordered)):
            try:
                found.append(await self.secondary.inspect(queue))
            except BrokerError as error:
                if queue in self.ordered and isinstance(error, EntityNotFound):
                    continue  # no send to an ordered entity has been diverted there
                return ()
        return found

    async def _ages(self, infos: Sequence[EntityInfo]) -> Mapping[str, float | None]:
        """
        The age of the oldest message of each queue with messages, in seconds; None: not known.
        """
        peeks = offered(self.secondary, Peeks)
        filled = [info for info in infos if info.active != 0]
        if peeks is None:
            return {info.path.name: None for info in filled}
        ages: dict[str, float | None] = {}
        for info in filled:
            try:
                peeked = await peeks.peek(info.path, limit=1)
            except BrokerError:
                return {info.path.name: None for info in filled}
            dates = [each.enqueued for each in peeked if each.enqueued is not None]
            if dates:
                ages[info.path.name] = max(0.0, (self.clock() - min(dates)).total_seconds())
        return ages


@attrs.define(eq=False, kw_only=True)
class DepthSampler:
    """
    Reads the depth once a minute while an entity is in trouble or messages wait. Otherwise the
    sampler reads nothing: without an outage the depth costs nothing unless somebody asks.

    An outage begins for all gateways of a primary in the same second, in which the secondary gets
    their messages. So each reads for the first time at a random moment of the first minute.
    """

    depth: BacklogDepth
    states: EntityStates
    rng: random.Random

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        seen = self.states.changes.version
        while True:
            if not self._is_wanted():
                while not self._is_wanted():
                    seen = await self.states.changes.wait(seen)
                await trio.sleep(self.rng.uniform(0.0, EVERY))
            await self.depth.read(ANSWER_LIMIT, troubled=True)
            await trio.sleep(jittered(EVERY, JITTER, self.rng))

    def _is_wanted(self) -> bool:
        return bool(self.states.is_any_troubled or self.depth.last.pending)


def _depth_of(info: EntityInfo) -> int:
    return (info.active or 0) + info.locked_here
