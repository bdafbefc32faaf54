"""
Moves dead letters of queues to where they are received again.

A copy is sent first and its dead letter completed after that, so that no message is lost.
"""

import abc
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import KeepsMessages, Peeks, ReceivesAvailable
from gateway.deadlines import AnswerDeadline, answered_within
from gateway.domain.clocks.lock_ends import LockEnds
from gateway.domain.entity import EntityInfo, EntityPath
from gateway.domain.envelope_fields import text_of_id
from gateway.domain.errors import (
    MESSAGE_FAULTS,
    BrokerError,
    EntityNotFound,
    LockLost,
    NotSupported,
    Outcome,
)
from gateway.domain.message import Complete, Delivery, Message
from gateway.extensions.redrive.events import DeadLettersRedriven
from gateway.extensions.redrive.order import (
    Grouping,
    Letter,
    Redriven,
    Selection,
    Survey,
)
from gateway.offering import offered
from gateway.pairing.sending import send_in_time
from gateway.pairing.syphon.backlog_message import Progress
from gateway.ports import Broker, NewId, Observer, Receiver, WallClock

PAGE: Final = 100  # names or messages of one request, as many as Service Bus lists at most
BATCH: Final = 10  # dead letters that are locked together
QUIET: Final = 3.0  # seconds without another dead letter, after which the queue counts as empty
LONGEST_LOCK: Final = 60.0  # seconds of a lock that is waited for: five minutes are too long
AT_ONCE: Final = 16  # queues
LOCK_SHARE: Final = 3.0  # a message is moved with two thirds of its lock left
ANSWER: Final = 10.0  # seconds that one request to the namespace may take

Add = Callable[[Redriven], None]
"""Called with what was just moved or left, and with each problem at once."""


@attrs.frozen(kw_only=True)
class LetterMover(abc.ABC):
    """Dead letters of some queues on `source`: shows them, and moves them."""

    source: Broker
    clock: WallClock
    new_id: NewId
    observer: Observer

    @abc.abstractmethod
    async def infos(self) -> Sequence[EntityInfo]:
        """
        The queues that dead letters are moved to.

        Raises:
            BrokerError: the namespace can't be asked.
        """

    @abc.abstractmethod
    def read(self, delivery: Delivery) -> Letter:
        """The dead letter, as far as it is readable."""

    @abc.abstractmethod
    def revive(self, letter: Letter) -> Message:
        """The message that is sent for it."""

    def dead_letters_of(self, info: EntityInfo) -> EntityPath:
        """The queue that has the dead letters."""
        return info.path.dead_letter

    def report(self, done: Redriven, reason: str) -> None:
        """Report what a run has moved and left."""
        self.observer.report(
            DeadLettersRedriven(messages=done.moved, left=done.left, reason=reason)
        )

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey:
        """
        Count the matching dead letters by reason and entity, without changing them; `peek` is the
        number of samples at most, with `preview` bytes of their bodies. A namespace that can't
        peek is received from, and the locks are released.

        Raises:
            BrokerError: the namespace can't be asked for its backlog queues.
        """
        grouping = Grouping(selection, peek=peek, preview=preview)
        problems: dict[str, bool] = {}  # each, and whether it is an outage

        async def survey_one(info: EntityInfo) -> None:
            try:
                missing = await self._survey(info, grouping)
            except BrokerError as error:
                problems[f"{info.path}: {_why(error)}"] = error.counts_as_outage
            else:
                if missing:
                    problems[f"{info.path}: {missing}"] = False

        await self._on_each_queue(survey_one)
        return Survey(
            groups=grouping.groups(),
            problems=tuple(problems),
            is_outage=any(problems.values()),
            samples=tuple(grouping.samples),
        )

    async def run(
        self,
        selection: Selection,
        *,
        add: Add,
        rate: float | None = None,
        most: float = math.inf,
        reason: str = "",
    ) -> Redriven:
        """
        Move the selected dead letters: at most `most` messages, at most `rate` a second. The event
        has the operator's reason.

        A message is moved at most once, even if it is dead-lettered again meanwhile. On
        cancellation, moves in progress are finished first, within 20 s; `add` has told the results
        until then.

        Raises:
            BrokerError: the namespace can't be asked for its backlog queues.
        """
        shared = _RedriveRun(selection=selection, add=add, progress=Progress(rate), most=most)
        await self._on_each_queue(lambda info: _Moving(self, shared, info).run())
        done = shared.done
        if done.moved or done.left:
            self.report(done, reason)
        return done

    async def _on_each_queue(self, work: Callable[[EntityInfo], Awaitable[None]]) -> None:
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def turn(info: EntityInfo) -> None:
            async with limiter:
                await work(info)

        infos = await self.infos()
        async with trio.open_nursery() as nursery:
            for info in infos:
                nursery.start_soon(turn, info)

    async def _survey(self, info: EntityInfo, grouping: Grouping) -> str:
        """
        Peek where that shows all dead letters; else receive the others and release them. Return
        what is missing; empty: nothing.
        """
        taking = _Taking(self.dead_letters_of(info), info.dead_lettered)
        if taking.is_over:
            return ""
        is_shown = await self._peek(taking, grouping)
        if taking.is_over or (is_shown and taking.expected is None):
            return ""
        async with self.source.open_receiver(taking.queue) as receiver:
            while not taking.is_over:
                new = await taking.next(receiver, PAGE)
                if not new:
                    break
                for delivery in new:
                    grouping.add(self.read(delivery))
                    _forget(receiver, delivery)
        return taking.missing

    async def _peek(self, taking: "_Taking", grouping: Grouping) -> bool:
        """True if the namespace can peek; even then it may not show all messages."""
        peeks = offered(self.source, Peeks)
        if peeks is None:
            return False
        start = 0
        while True:
            try:
                with in_time(taking.queue):
                    page = await peeks.peek(taking.queue, from_sequence=start, limit=PAGE)
            except NotSupported:
                return False
            new = taking.unseen(page)
            if not new:
                return True
            for delivery in new:
                grouping.add(self.read(delivery))
            start = 1 + max(delivery.sequence_number for delivery in new)


@attrs.define(eq=False)
class _Taking:
    """Visits each dead letter of one queue once, even if some are delivered again."""

    queue: EntityPath
    expected: int | None  # dead letters, as the namespace counts them; None: it doesn't
    seen: set[int] = attrs.field(factory=set, init=False)

    @property
    def is_over(self) -> bool:
        """All dead letters that were counted have been seen."""
        return self.expected is not None and len(self.seen) >= self.expected

    @property
    def missing(self) -> str:
        """The dead letters that are counted and didn't come, as a text; empty: none is known of."""
        if self.expected is None or self.is_over:
            return ""
        return (
            f"{self.expected - len(self.seen)} of {self.expected} dead letters weren't received:"
            " they are locked, perhaps by an earlier look, or gone; try again"
        )

    def unseen(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        new = [each for each in deliveries if each.sequence_number not in self.seen]
        self.seen.update(each.sequence_number for each in new)
        return new

    async def next(
        self, receiver: Receiver, limit: int, patience: float = QUIET
    ) -> Sequence[Delivery]:
        """
        Wait for dead letters that weren't seen yet. The result is empty if the queue says that
        nothing is available; a queue that can't say it, or counts more, is asked for `patience`
        seconds.
        """
        knows = None if self.expected is not None else offered(receiver, ReceivesAvailable)
        receive = receiver.receive if knows is None else knows.receive_available
        with trio.move_on_after(patience):
            while found := await receive(limit):
                if new := self.unseen(found):
                    return new
        return ()


@attrs.define(eq=False, kw_only=True)
class _RedriveRun:
    """State that the queues of one run share."""

    selection: Selection
    add: Add
    progress: Progress
    most: float
    begun: int = 0  # in progress, or moved
    done: Redriven = attrs.field(factory=Redriven)
    identities: set[str] = attrs.field(factory=set)  # of what was moved

    def record(self, done: Redriven) -> None:
        self.done += done
        self.add(done)

    def record_moved(self, letter: Letter) -> None:
        self.identities.add(letter.identity)
        self.record(Redriven(moved=1))

    def leave(self, problem: str) -> None:
        self.record(Redriven(left=1, problems=(problem,)))

    def record_problem(self, problem: str, *, is_outage: bool = False) -> None:
        self.record(Redriven(problems=(problem,), is_outage=is_outage))


@attrs.define(eq=False)
class _Moving:
    """Moves the dead letters of one queue, as far as possible."""

    redrive: LetterMover
    shared: _RedriveRun
    info: EntityInfo
    _taking: _Taking = attrs.field(init=False)
    # Sequence numbers of copies that were sent and whose completion isn't confirmed.
    _unconfirmed: set[int] = attrs.field(factory=set, init=False)

    async def run(self) -> None:
        queue = self.info.path
        self._taking = _Taking(self.redrive.dead_letters_of(self.info), self.info.dead_lettered)
        try:
            await self._move_all()
        except BrokerError as error:
            self.shared.record_problem(f"{queue}: {_why(error)}", is_outage=error.counts_as_outage)
        finally:
            if self._unconfirmed:
                # Another redrive sends them again: a duplicate, not a loss.
                count = len(self._unconfirmed)
                self.shared.record_problem(
                    f"{queue}: {count} messages were moved and are still dead letters"
                )

    @property
    def _patience(self) -> float:
        """Seconds for what is counted and doesn't come: an earlier look may have locked it."""
        if self._taking.expected is None or self._unconfirmed:
            return QUIET
        lock = self.info.properties.lock_duration.total_seconds()
        return min(lock, LONGEST_LOCK) + QUIET

    async def _move_all(self) -> None:
        if self._taking.is_over:
            return
        if self.info.properties.requires_duplicate_detection:
            raise NotSupported("the queue detects duplicates, and would drop the moved messages")
        async with self.redrive.source.open_receiver(self._taking.queue) as receiver:
            while not self._taking.is_over:
                # At most what can move within a second, as the locks run meanwhile.
                limit = self.shared.progress.within_rate(BATCH)
                new = await self._taking.next(receiver, limit, self._patience)
                if not new:
                    missing = self._taking.missing
                    if missing and not self._unconfirmed:  # which are told by themselves
                        self.shared.record_problem(f"{self.info.path}: {missing}")
                    return
                taken_at, date = trio.current_time(), self.redrive.clock()
                for delivery in new:
                    if self.shared.begun >= self.shared.most:
                        return
                    lock = LockEnds.of(delivery.locked_until, date, taken_at)
                    await self._receive(receiver, delivery, lock.earliest - taken_at, taken_at)

    async def _receive(
        self, receiver: Receiver, delivery: Delivery, lock: float, taken_at: float
    ) -> None:
        """
        Move, complete or leave one dead letter, whose lock lasts `lock` seconds from `taken_at` on.

        Raises:
            BrokerError: the namespace accepts no more messages for now.
        """
        letter = self.redrive.read(delivery)
        if delivery.sequence_number in self._unconfirmed:
            await self._complete(receiver, delivery)
        elif not self.shared.selection.takes(letter):
            _forget(receiver, delivery)
        elif letter.problem:
            _forget(receiver, delivery)
            self.shared.leave(letter.problem)
        elif letter.identity in self.shared.identities:
            _forget(receiver, delivery)
            self.shared.leave(f"the message was dead-lettered again: {letter.reason}")
        else:
            self.shared.begun += 1
            await self.shared.progress.wait_for_rate_limit()
            self.shared.progress.spend(1)
            try:
                if trio.current_time() - taken_at > lock / LOCK_SHARE:
                    with suppress(NotSupported):  # the lock lasts until its first date
                        await receiver.renew(delivery)
                await self._move(receiver, delivery, letter)
            except LockLost:
                self.shared.begun -= 1
                self._taking.seen.discard(
                    delivery.sequence_number
                )  # the message will be delivered again
            except (*MESSAGE_FAULTS, EntityNotFound) as error:
                self.shared.begun -= 1
                self.shared.leave(f"{self.info.path}: {error}")

    async def _move(self, receiver: Receiver, delivery: Delivery, letter: Letter) -> None:
        """
        Raises:
            BrokerError: the message was not sent, or the outcome is unknown.
        """
        redrive, queue = self.redrive, self.info.path
        message = redrive.revive(letter)
        # A cancellation between send and completion would leave the message in both places.
        with trio.CancelScope(deadline=trio.current_time() + 2 * ANSWER, shield=True):
            try:
                await send_in_time(redrive.source, queue, [message], ANSWER)
            except BrokerError as error:
                if error.outcome is Outcome.UNKNOWN:
                    name = text_of_id(letter.message.message_id)
                    text = f"message {name} is still a dead letter, and may have been moved too"
                    self.shared.record(Redriven(unknown=1, problems=(f"{queue}: {text}",)))
                raise
            self.shared.record_moved(letter)
            self._unconfirmed.add(delivery.sequence_number)
            await self._complete(receiver, delivery)

    async def _complete(self, receiver: Receiver, delivery: Delivery) -> None:
        """Complete a dead letter; after a failure it is completed when it is delivered again."""
        try:
            with in_time(self.info.path):
                await receiver.settle(delivery, Complete())
        except BrokerError:
            self._taking.seen.discard(delivery.sequence_number)
        else:
            self._unconfirmed.discard(delivery.sequence_number)


def in_time(queue: EntityPath) -> AnswerDeadline:
    return answered_within(ANSWER, f"from {queue}")


def _why(error: BrokerError) -> str:
    if isinstance(error, EntityNotFound):
        return f"the queue has no dead-letter sub-queue that can be received from ({error})"
    return str(error)


def _forget(receiver: Receiver, delivery: Delivery) -> None:
    """Drop the receiver's copy of the message: only its lock is needed, until the end."""
    if (keeps := offered(receiver, KeepsMessages)) is not None:
        keeps.forget_message(delivery)
