"""
Watches sends to the primary without an answer: after `slow_call_duration` their entity is suspect.

Such a send goes on waiting for its answer, but no longer than `suspect_wait` if its entity shows no
sign of life: then it is diverted, since its outcome is unknown.
"""

from itertools import islice, takewhile
from math import inf
from typing import Final

import attrs
import trio

from gateway.domain.failover import State
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import PairOptions
from gateway.pairing.sending import SecondCopy
from gateway.pairing.states import EntityStates

STALL: Final = 0.5  # seconds late: the gateway was paused, not the primary slow


@attrs.define(eq=False)
class UnansweredSend:
    """A send without an answer."""

    attempt: Attempt
    patience: trio.CancelScope | None  # cancelled when the entity shows no sign of life
    second: SecondCopy | None
    due: float
    since: float  # the last check for a sign of life
    overtaken: bool = False  # a later send was accepted, so that this one doesn't count


Queue = dict[UnansweredSend, None]  # in order of `due`


@attrs.define(eq=False, kw_only=True)
class SlowWatch:
    """A task that watches all sends, and sleeps while there are none."""

    options: PairOptions
    states: EntityStates
    slow: int = attrs.field(default=0, init=False)  # sends since the start
    _waiting: dict[float, Queue] = attrs.field(factory=dict, init=False)  # by their time limit
    _slow: Queue = attrs.field(factory=dict, init=False)  # whose entity became suspect
    _alive: Queue = attrs.field(factory=dict, init=False)  # whose entity shows life
    _by_entity: dict[str, Queue] = attrs.field(factory=dict, init=False)
    _news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _looks: float = attrs.field(default=inf, init=False)  # the next check
    _copies: trio.Nursery = attrs.field(init=False)  # while it runs

    def begin(
        self, attempt: Attempt, patience: trio.CancelScope | None, second: SecondCopy | None = None
    ) -> UnansweredSend | None:
        """
        Watch the send until `stop` is called with the result. With `patience` None it is never
        cancelled.

        `second` begins after `second.after` seconds without an answer, or once the send is slow.
        """
        seconds = min(self.options.slow_call_duration or inf, second.after if second else inf)
        if seconds == inf:
            return None
        watched = UnansweredSend(
            attempt, patience, second, due=attempt.began + seconds, since=attempt.began
        )
        self._waiting.setdefault(seconds, {})[watched] = None
        self._by_entity.setdefault(attempt.entity.key, {})[watched] = None
        if second is not None:
            second.expect()
        if watched.due < self._looks:
            self._news.unpark_all()
        return watched

    def stop(self, watched: UnansweredSend | None) -> None:
        """End the watch of a send."""
        if watched is None:
            return
        for queue in self._queues:
            queue.pop(watched, None)
        self._forget(watched)
        if watched.second is not None:
            watched.second.cancel()

    def accepted(self, attempt: Attempt) -> None:
        """Record that a send was accepted: older sends of its entity don't count as slow."""
        others = self._by_entity.get(attempt.entity.key, {})
        for watched in list(takewhile(lambda one: one.attempt.began < attempt.began, others)):
            watched.overtaken = True
            self._forget(watched)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as self._copies:
            task_status.started()
            while True:
                firsts = (one.due for queue in self._queues for one in islice(queue, 1))
                self._looks = min(firsts, default=inf)
                with trio.move_on_at(self._looks):
                    await self._news.park()
                    continue
                if trio.current_time() - self._looks > STALL:
                    self._excuse()
                else:
                    self._poll()

    def _excuse(self) -> None:
        """Restart the time of all sends, because the gateway was paused."""
        now = trio.current_time()
        for seconds, waiting in self._waiting.items():
            for watched in waiting:
                watched.due = now + seconds
        self._slow.clear()
        self._alive.clear()

    def _poll(self) -> None:
        now = trio.current_time()
        for watched in [one for queue in self._waiting.values() for one in _due(queue, now)]:
            if self.options.slow_call_duration is not None:
                self._suspect(watched, now)
            if watched.second is not None:
                self._begin_copy(watched, watched.second)
        for watched in [*_due(self._slow, now), *_due(self._alive, now)]:
            if watched.overtaken or watched.patience is None:
                continue
            if not self.states.shows_life(watched.attempt.entity, watched.since):
                watched.patience.cancel()
            else:
                watched.since, watched.due = now, now + (self.options.slow_call_duration or inf)
                self._alive[watched] = None

    def _suspect(self, watched: UnansweredSend, now: float) -> None:
        self.slow += 1
        self.states.evidence.slow(watched.attempt)
        if not watched.overtaken:
            # The begin of a copy is none: a healthy primary may take as long for each send.
            late = watched.attempt.began + (self.options.slow_call_duration or inf)
            self.states.slow(watched.attempt, is_silence=now >= late)
            watched.due = now + self.options.suspect_wait
            self._slow[watched] = None

    def _begin_copy(self, watched: UnansweredSend, second: SecondCopy) -> None:
        if watched.patience is None:
            return
        in_doubt = self.states.state_of(watched.attempt.entity) is not State.PRIMARY
        second.begin(self._copies, watched.patience.cancel, in_doubt=in_doubt)

    @property
    def _queues(self) -> tuple[Queue, ...]:
        return *self._waiting.values(), self._slow, self._alive

    def _forget(self, watched: UnansweredSend) -> None:
        key = watched.attempt.entity.key
        mine = self._by_entity.get(key, {})
        mine.pop(watched, None)
        if not mine:
            self._by_entity.pop(key, None)


def _due(queue: Queue, now: float) -> list[UnansweredSend]:
    """Remove the sends that are due from the queue, and return them."""
    found = list(takewhile(lambda one: one.due <= now, queue))
    for watched in found:
        del queue[watched]
    return found
