"""
The steps of `pairgate drill`: load, a drill, its end, the return of the entities and of the
backlog, and the verdict.

The gateway and its namespaces are the operator's own. The load's messages are marked and go to a
queue that no other client uses; only they are received again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.capabilities.settling import settle_or_raise
from gateway.checker.operations import Acked
from gateway.demo.traffic import Traffic
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.message import Abandon, AcceptedBy, Complete, Delivery, Settlement
from gateway.domain.status.pair import PairStatus
from gateway.domain.status.process import Status
from gateway.extensions.drill.order import Drill, DrillAnswer, DrillOrder
from gateway.extensions.drill.section import DRILL
from gateway.ports import Broker, Receiver

HEALTHY: Final = 2.0  # seconds of load before the drill
LOOK: Final = 0.5  # seconds between two looks at the status
ALONE: Final = 30.0  # seconds for the backlog of a gateway without a syphon, if no other is seen
QUIET: Final = 1.0  # seconds without a message after which the queue may be read
PAGE: Final = 100  # messages of one receive, as many as a syphon's
ANSWER_SECONDS: Final = 10.0  # for one answer of the gateway or the namespace
SPARE_LIFE: Final = timedelta(hours=1)  # of a message, longer than the whole drill may take
HALF_OPEN: Final = "half-open"

Narrate = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Load:
    """The messages to send, and the way through the gateway to the queue of the load."""

    broker: Broker
    entity: EntityPath
    run: str  # a text that no other run has
    rate: float  # messages/s of each producer
    producers: int

    @property
    def mark(self) -> str:
        """The beginning of the ids of the messages."""
        return f"drill-{self.run}-"


@attrs.frozen(kw_only=True)
class DrillOutcome:
    """The verdict, and the figures of the drill. Times are seconds. None: not known."""

    seconds: float  # for which the way was cut
    sent: int | None  # by the load; None, as for all figures of the load: there was no load
    acknowledged: int | None
    errors: int | None
    longest_stall: float | None
    received: int | None  # messages of the load, from its queue
    lost: int | None
    twice: int | None
    diverted: int  # by the gateway, of all its clients
    moved: int | None  # by the gateway's own syphon, if it has one
    back_after: float | None  # from the drill's end until all entities were on the primary
    empty_after: float | None  # until the backlog was empty
    undecided: tuple[str, ...]  # what couldn't be checked

    @property
    def findings(self) -> tuple[str, ...]:
        """The broken promises."""
        found = []
        if self.lost:
            found.append(f"{self.lost} acknowledged messages were lost")
        if self.errors:
            found.append(f"{self.errors} sends got an error")
        return tuple(found)

    @property
    def passed(self) -> bool:
        return not self.findings and not self.undecided


async def check_queue(broker: Broker, queue: EntityPath) -> None:
    """
    Check that the queue can be used for a load.

    Raises:
        Failure: the queue is missing, requires sessions or has messages, or there is no answer.
    """
    try:
        with trio.fail_after(ANSWER_SECONDS):
            info = await broker.inspect(queue)
    except EntityNotFound as error:
        text = f"--load: {error}; `pairgate create queue {queue}` creates it"
        raise Failure(text, ExitCode.WRONG) from error
    except (BrokerError, trio.TooSlowError) as error:
        raise Failure(f"--load: {queue}: {error or 'no answer'}", ExitCode.TEMPORARY) from error
    if info.requires_session:
        raise Failure(f"--load: {queue} requires sessions", ExitCode.WRONG)
    if info.active:
        raise Failure(
            f"--load: {queue} has {info.active} messages. The load needs an empty queue that nobody"
            " else uses, because it receives its own messages again",
            ExitCode.WRONG,
        )


@attrs.define(eq=False, kw_only=True)
class Rehearsal:
    """A drill with a running gateway. `traffic` and `pair` may be read meanwhile."""

    order: DrillOrder
    load: Load | None  # None: the real load is watched
    wait: float  # seconds, for the return of the entities, and then for the backlog
    read: Callable[[], Awaitable[Status]]  # of a gateway with a pair
    begin: Callable[[DrillOrder], Awaitable[DrillAnswer]]
    end: Callable[[], Awaitable[DrillAnswer]]
    narrate: Narrate
    traffic: Traffic = attrs.field(init=False)
    pair: PairStatus | None = attrs.field(default=None, init=False)  # as last read
    _at: datetime | None = attrs.field(default=None, init=False)  # of `pair`
    _drill: Drill | None = attrs.field(default=None, init=False)  # as last read
    _told: dict[str, str] = attrs.field(factory=dict, init=False)  # states of entities
    _before: PairStatus | None = attrs.field(default=None, init=False)  # as first read
    _last_diverted: datetime | None = attrs.field(default=None, init=False)  # none was later

    def __attrs_post_init__(self) -> None:
        life = timedelta(seconds=self.order.seconds + 2 * self.wait) + SPARE_LIFE
        self.traffic = Traffic(time_to_live=life)

    async def play(self) -> DrillOutcome:
        """
        Rehearse the outage to its end. In any case the way is restored, at the latest when the
        drill's time is up.

        Raises:
            Failure: the gateway doesn't answer, or refuses the order.
        """
        self._before = await self._poll()
        failure: Failure | None = None
        async with trio.open_nursery() as producers:
            try:
                if self.load is not None:
                    self._start(self.load, producers)
                    await trio.sleep(HEALTHY)
                seconds = await self._cut()
                ended = trio.current_time()
                back_after = await self._until(self._is_back, ended, self.wait)
            except Failure as error:
                # If raised here, the failure would be in an exception group.
                failure = error
            self.traffic.stopping = True
        if failure is not None:
            raise failure
        if back_after is not None:
            self.narrate(f"all entities are back, {back_after:.1f} s after the end of the drill")
        await self._poll()
        self._last_diverted = self._at
        empty_after = await self._until_empty(ended)
        outcome = await self._judge(seconds)
        undecided = list(outcome.undecided)
        if back_after is None:
            undecided.append(f"some entities aren't back after {self.wait:g} s")
        if empty_after is None:
            undecided.append(self._left())
        return attrs.evolve(
            outcome, back_after=back_after, empty_after=empty_after, undecided=tuple(undecided)
        )

    def _start(self, load: Load, producers: trio.Nursery) -> None:
        for number in range(load.producers):
            name = f"{load.mark}{number}"
            producers.start_soon(self.traffic.produce, load.broker, load.entity, name, load.rate)
        total = load.producers * load.rate
        self.narrate(f"{load.producers} producers send {total:g} messages/s to {load.entity}")

    async def _cut(self) -> float:
        """Drill until the time is up, or another operator ends the drill; return the seconds."""
        began = trio.current_time()
        is_over = False
        try:
            try:
                answer = await self.begin(self.order)
            except Failure as error:
                # A refused order isn't to be taken back: that would end another operator's drill.
                is_over = error.code is ExitCode.FAILED
                raise
            drill = answer.after.drill
            self.narrate("the drill begins" if drill is None else f"the drill begins: {drill.text}")
            with trio.move_on_after(self.order.seconds + 2 * LOOK):
                while True:
                    await self._poll()
                    if self._drill is None:
                        break
                    # Another process changes its status, without a signal to this one.
                    await trio.sleep(LOOK)
            is_over = True
        finally:
            if not is_over:
                with trio.move_on_after(ANSWER_SECONDS, shield=True):
                    await self.end()
        seconds = trio.current_time() - began
        self.narrate(f"the way is restored, after {seconds:.1f} s")
        return seconds

    async def _until_empty(self, since: float) -> float | None:
        """As `_until`, but a backlog that no syphon moves isn't awaited for long."""
        first = self.wait if self._is_moved() else min(ALONE, self.wait)
        found = await self._until(self._is_empty, since, first)
        if found is None and first < self.wait and self._is_moved():
            return await self._until(self._is_empty, since, self.wait - first)
        return found

    def _is_moved(self) -> bool:
        """True if a syphon is known, or the depth of the backlog has fallen."""
        assert self.pair is not None, "it was read"
        backlog = self.pair.backlog
        fell = backlog.last_decrease is not None
        return self.pair.syphon.running or backlog.consumers or fell

    async def _until(
        self, reached: Callable[[PairStatus], bool], since: float, patience: float
    ) -> float | None:
        """
        The seconds since the given time after which a status met the condition; None: no status
        did, within `patience` seconds from now.
        """
        with trio.move_on_after(patience):
            while True:
                if reached(await self._poll()):
                    return trio.current_time() - since
                await trio.sleep(LOOK)
        return None

    async def _poll(self) -> PairStatus:
        """Return the status, and report its changes."""
        status = await self.read()
        pair, self._at, self._drill = status.pair, status.at, status.of(DRILL)
        assert pair is not None, "the gateway has a pair"
        self.pair = pair
        now = {each.entity: each.state for each in pair.entities}
        for name, state in now.items():
            if self._told.get(name) != state:
                self.narrate(f"{name} is {state}")
        for name in self._told.keys() - now.keys():
            self.narrate(f"{name} is back on the primary")
        self._told = now
        return pair

    def _is_back(self, pair: PairStatus) -> bool:
        """
        True if all entities are back; without a load of its own, an entity that only waits for its
        next send counts, too.
        """
        states = {state for state, count in pair.states.items() if count}
        return not (states if self.load is not None else states - {HALF_OPEN})

    def _is_empty(self, pair: PairStatus) -> bool:
        return self._pending(pair) == 0 and pair.backlog.is_empty

    def _pending(self, pair: PairStatus) -> int | None:
        """
        The depth of the backlog; None: not known. The gateway reads the depth from time to time, so
        that a reading may be older than the last diverted message.
        """
        backlog, least = pair.backlog, self._last_diverted
        if self._diverted_since(pair) > 0 and (
            least is None or backlog.as_of is None or backlog.as_of < least
        ):
            return None
        return backlog.pending

    def _diverted_since(self, pair: PairStatus) -> int:
        """The messages that the gateway has diverted since the rehearsal began."""
        assert self._before is not None, "it was read"
        return _diverted(pair) - _diverted(self._before)

    def _left(self) -> str:
        assert self.pair is not None, "it was read"
        pending = self._pending(self.pair)
        depth = "an unknown number of" if pending is None else str(pending)
        text = f"{depth} messages wait on the backlog"
        syphon = self.pair.syphon
        if not syphon.running and not self.pair.backlog.consumers:
            text += "; this gateway has no syphon, and none is seen at the secondary"
        return text

    async def _judge(self, seconds: float) -> DrillOutcome:
        pair, before = await self._poll(), self._before
        assert before is not None, "it was read"
        moved = pair.syphon.moved - before.syphon.moved if pair.syphon.running else None
        traffic, load = self.traffic, self.load
        outcome = DrillOutcome(
            seconds=seconds,
            sent=None,
            acknowledged=None,
            errors=None,
            longest_stall=None,
            received=None,
            lost=None,
            twice=None,
            diverted=self._diverted_since(pair),
            moved=moved,
            back_after=None,
            empty_after=None,
            undecided=(),
        )
        if load is None:
            return outcome
        acked = {each.message_id for each in traffic.records if isinstance(each, Acked)}
        reader = _LoadReader(load=load, wanted=acked, wait=self.wait)
        undecided: tuple[str, ...] = ()
        try:
            await reader.read()
        except BrokerError as error:
            undecided = (f"{load.entity} can't be read: {error}",)
        if reader.others:
            undecided = (f"{load.entity} has messages of others, so it wasn't read to its end",)
        missing = len(acked - reader.found.keys())
        # A missing message may still be on its way, as long as messages wait on the backlog.
        known = not undecided and (self._is_empty(pair) or not missing)
        return attrs.evolve(
            outcome,
            sent=traffic.sent,
            acknowledged=traffic.acknowledged,
            errors=traffic.errors,
            longest_stall=traffic.longest_stall,
            received=len(reader.found),
            lost=missing if known else None,
            twice=sum(reader.found.values()) - len(reader.found),
            undecided=undecided,
        )


def _diverted(pair: PairStatus) -> int:
    elsewhere = {AcceptedBy.BACKLOG.value, AcceptedBy.SPOOL.value}
    return sum(each.messages for each in pair.sends if each.accepted_by in elsewhere)


@attrs.define(eq=False, kw_only=True)
class _LoadReader:
    """Receives the messages of the load, and no others."""

    load: Load
    wanted: set[str]  # ids that must be found
    wait: float  # seconds without a message after which the missing ones are given up
    found: Counter[str] = attrs.field(factory=Counter, init=False)
    others: int = attrs.field(default=0, init=False)

    async def read(self) -> None:
        """
        Complete the marked messages of the queue until it has no more; stop at the first unmarked
        message, which is abandoned.

        Raises:
            BrokerError: the queue can't be read.
        """
        async with self.load.broker.open_receiver(self.load.entity) as receiver:
            while not self.others:
                patience = QUIET if self.wanted <= self.found.keys() else min(self.wait, 10 * QUIET)
                with trio.move_on_after(patience) as limit:
                    await self._read_some(receiver)
                if limit.cancelled_caught:
                    return

    async def _read_some(self, receiver: Receiver) -> None:
        deliveries = await receiver.receive(PAGE)
        settlements: list[tuple[Delivery, Settlement]] = []
        for each in deliveries:
            message_id = str(each.message.message_id)
            if message_id.startswith(self.load.mark):
                self.found[message_id] += 1
                settlements.append((each, Complete()))
            else:
                self.others += 1
                settlements.append((each, Abandon(delivered=False)))
        with trio.move_on_after(ANSWER_SECONDS, shield=True):
            await settle_or_raise(receiver, settlements)
