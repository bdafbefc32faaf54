"""
The order of work among clients: while several have work, each has a few requests in progress at a
time, and its others wait in a line of its own. So the waiting time of a request doesn't depend on
the number of requests, connections or bytes of another client.

A single client isn't held back. Beside a client that has only one or two requests at a time, others
have no more than that, either: its next request doesn't wait behind many of theirs. Two clients
with many requests don't limit each other further, since a store writes many at once with less work.
A request with much work, as a batch of 1,000 messages, does it in small steps beside a light
client, and lets that client's request end between two of them. A namespace of this process stores
such a batch in one step all the same, and a light client's request waits for it: so the batch's
client rests afterwards, and few of those requests meet a batch.

A request that takes longer than `LONGEST` doesn't count any more, since it doesn't wait for this
process. A request counts with its own bytes and with those of the answer that it may get, which is
as large as the client's latest answers: many small requests with large answers take as much of the
event loop as large requests do.

Tasks that wait for a change, and check by themselves what has changed, are `Waiters`.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio


@attrs.define(eq=False)
class Waiters:
    """
    A parking lot that is made when the first task waits: an empty one takes 370 bytes, and most of
    a connection's are never used.
    """

    _lot: trio.lowlevel.ParkingLot | None = attrs.field(default=None, init=False)

    async def wait(self) -> None:
        """Return after the next `wake`."""
        if self._lot is None:
            self._lot = trio.lowlevel.ParkingLot()
        await self._lot.park()

    def wake(self) -> None:
        """Wake all tasks that wait."""
        if self._lot:  # called for each message, mostly without a waiting task
            self._lot.unpark_all()


# Chosen by benchmarks/results/2026-11-26-starvation.md, which says what else was tried: a smaller
# share for all, and steps of other sizes.
MOST_BYTES: Final = 64 * 1024  # of the requests of one client, and their answers; one may have more
LONGEST: Final = 0.1  # seconds: such a request waits for others, not for this process
RECENT: Final = 1.0  # seconds since its last request in which a client counts as having work
NEWEST: Final = 0.25  # share of the latest answer in the mean of a client's answers
LIGHT: Final = 2  # requests of a light client in progress, at most; none of its requests waits
SOON: Final = 0.01  # seconds from a light client's request in which others have `LIGHT`, too
BRIEF: Final = 0.002  # seconds for which a step of a large request waits for a light client
# A large request that took the processor for more than `SOON` is followed by a rest that is so many
# times as long: with 2, one in two hundred requests of a light client meets a batch of 4,000
# messages, which takes 60 ms; with 1, one in a hundred.
REST: Final = 2


@attrs.define(eq=False)
class RequestTurn:
    """A request that is in progress, or waits for its turn."""

    line: "Line"
    count: int
    size: int
    began: float = 0.0
    counts: bool = False
    is_light: bool = False  # it counts, and steps of large requests wait for its end
    begun: trio.Event | None = None  # of one that waits
    # Of a waiting request; only the first of a line has a deadline.
    wait: trio.CancelScope | None = None
    # The process's processor time when a large request first gave way.
    _spent: float | None = attrs.field(default=None, init=False)

    def release(self, answer: int = 0) -> None:
        """Note that the request has ended, with an answer of `answer` bytes."""
        self.line.record_answer(answer)
        if answer > MOST_BYTES:
            self.line.begin_rest(min(trio.current_time() - self.began, SOON))
        elif self._spent is not None and (spent := time.process_time() - self._spent) > SOON:
            self.line.begin_rest(min(REST * spent, LONGEST))
        self.line.release(self)

    @property
    def is_beside_light(self) -> bool:
        """True if another client is light and has had a request in the last `SOON` seconds."""
        return self.line.is_beside_light

    async def give_way(self) -> None:
        """
        Return when a light client's request that is in progress has ended, or after `BRIEF`
        seconds; at once if there is none. A request whose work takes several milliseconds calls
        this after a checkpoint between two steps. It doesn't count as that of a light client.
        """
        if self._spent is None:
            self._spent = time.process_time()
        await self.line.give_way(self)


@attrs.define(eq=False)
class _Latest:
    """The client that did something last, and the time when another client did."""

    _client: str | None = attrs.field(default=None, init=False)
    _at: float = attrs.field(default=-math.inf, init=False)
    _other_at: float = attrs.field(default=-math.inf, init=False)

    def record(self, client: str, now: float) -> None:
        if client != self._client:
            self._other_at, self._client = self._at, client
        self._at = now

    def other_than(self, client: str) -> float:
        """The time when a client other than that one did it last."""
        return self._other_at if client == self._client else self._at


@attrs.define(eq=False)
class Contention:
    """Tells if another client than a given one has work, and if a light one has."""

    most: int  # requests of one client in progress, while others have work; 0: any number
    _working: _Latest = attrs.field(factory=_Latest, init=False)
    _light: _Latest = attrs.field(factory=_Latest, init=False)
    # In progress, the oldest first.
    _light_turns: dict[RequestTurn, None] = attrs.field(factory=dict, init=False)
    _light_ended: Waiters = attrs.field(factory=Waiters, init=False)

    def record(self, line: "Line", now: float) -> None:
        """Note that the client of that line has a request now."""
        self._working.record(line.client, now)

    def begin_light(self, turn: RequestTurn, now: float) -> None:
        """Note that the turn's client is light and has a request now."""
        self._light.record(turn.line.client, now)
        turn.is_light = True
        self._light_turns[turn] = None

    def release_light(self, turn: RequestTurn) -> None:
        """Note that the turn has ended, or isn't light."""
        if turn.is_light:
            turn.is_light = False
            del self._light_turns[turn]
            self._light_ended.wake()

    async def wait_for_light(self) -> None:
        """
        Return when a light client's request has ended, or none is in progress: one that waits for
        something else, as a receive for a message, isn't.
        """
        now = trio.current_time()
        for turn in [each for each in self._light_turns if each.line.is_over(each, now)]:
            self.release_light(turn)
        if self._light_turns:
            await self._light_ended.wait()

    def is_alone(self, line: "Line", now: float) -> bool:
        """True if no other client has had a request in the last `RECENT` seconds."""
        return self._working.other_than(line.client) < now - RECENT

    def has_light(self, line: "Line", now: float, within: float = SOON) -> bool:
        """True if another client is light and has had a request in the last `within` seconds."""
        return self._light.other_than(line.client) > now - within


@attrs.define(eq=False)
class Line:
    """
    The requests of one client. `on_idle` is called when the last of them has ended. One that takes
    longer than `longest` seconds doesn't count any more.
    """

    _contention: Contention
    client: str  # the client's name
    on_idle: Callable[[], None] = lambda: None
    _longest: float = LONGEST
    _counted: int = attrs.field(default=0, init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _answer: float = attrs.field(default=0.0, init=False)  # bytes, the mean of the latest ones
    _rest_ends: float = attrs.field(default=-math.inf, init=False)
    _in_progress: deque[RequestTurn] = attrs.field(factory=deque, init=False)  # the oldest first
    _waiting: deque[RequestTurn] = attrs.field(factory=deque, init=False)

    @property
    def is_idle(self) -> bool:
        return not (self._counted or self._waiting)

    async def acquire(self, size: int = 0, count: int = 1) -> RequestTurn:
        """
        Return when it is the turn of a request of `size` bytes, or of `count` messages. The caller
        calls `release` of the result. If cancelled, the request has no turn.
        """
        now = trio.current_time()
        self._contention.record(self, now)
        turn = RequestTurn(self, count, size)
        if not self._waiting and self._may(turn, now):
            self._begin(turn, now)
            if self._counted <= LIGHT:
                self._contention.begin_light(turn, now)
            return turn
        turn.begun = trio.Event()
        self._waiting.append(turn)
        try:
            while not turn.begun.is_set():
                first = self._waiting[0] is turn
                limit = self._patience(trio.current_time()) if first else math.inf
                with trio.move_on_after(limit) as turn.wait:
                    await turn.begun.wait()
                self._let_on()  # some requests may have taken too long to count
        except BaseException:
            if turn.begun.is_set():
                self.release(turn)
            else:
                self._waiting.remove(turn)
                self._let_on()  # the request may have been the first in its line
            raise
        return turn

    def is_over(self, turn: RequestTurn, now: float) -> bool:
        """True if the request takes longer than one that waits for this process."""
        return turn.began <= now - self._longest

    def step(self, most: int, most_bytes: int) -> tuple[int, int]:
        """
        The numbers of messages and bytes that the client may put into a step, `most` and
        `most_bytes` at most: while another client has work, as many as it may have in progress.
        """
        share = self._contention.most
        if not share or self._contention.is_alone(self, trio.current_time()):
            return most, most_bytes
        return min(most, share), min(most_bytes, MOST_BYTES)

    @property
    def is_beside_light(self) -> bool:
        """As `RequestTurn.is_beside_light`."""
        return self._contention.has_light(self, trio.current_time())

    async def give_way(self, turn: RequestTurn) -> None:
        """As `RequestTurn.give_way`."""
        self._contention.release_light(turn)
        if self.is_beside_light:
            # A request that this pass of the event loop has read begins in it, perhaps later.
            await trio.lowlevel.checkpoint()
            with trio.move_on_after(BRIEF):
                await self._contention.wait_for_light()

    def record_answer(self, size: int) -> None:
        """Note that a request got an answer of `size` bytes."""
        self._answer += NEWEST * (size - self._answer)

    def begin_rest(self, seconds: float) -> None:
        """Let none of the client's requests begin beside a light client for so many seconds."""
        self._rest_ends = trio.current_time() + seconds

    def release(self, turn: RequestTurn) -> None:
        """Note that the request has ended."""
        self._uncount(turn)
        if self._in_progress and self._in_progress[0] is turn:
            self._in_progress.popleft()
        if self._waiting:
            self._let_on()
        if self.is_idle:
            self.on_idle()

    def _may(self, turn: RequestTurn, now: float) -> bool:
        while self._in_progress and self.is_over(self._in_progress[0], now):
            self._uncount(self._in_progress.popleft())
        if self._rests(now):
            return False
        if not self._counted or self._contention.is_alone(self, now):
            return True
        most = self._contention.most
        if self._contention.has_light(self, now):
            most = min(most, LIGHT)
        fits = self._bytes + turn.size + self._answer <= MOST_BYTES
        return fits and self._counted + turn.count <= most

    def _rests(self, now: float) -> bool:
        """
        True in a rest beside a light client, whose last request may have waited for what this
        client rests from.
        """
        return now < self._rest_ends and self._contention.has_light(self, now, LONGEST)

    def _patience(self, now: float) -> float:
        """Seconds after which the first waiting request looks again, though no other has ended."""
        if self._rests(now):
            return self._rest_ends - now
        return min(SOON if self._contention.has_light(self, now) else LONGEST, self._longest)

    def _begin(self, turn: RequestTurn, now: float) -> None:
        turn.began, turn.counts = now, True
        turn.size += int(self._answer)
        self._counted += turn.count
        self._bytes += turn.size
        while self._in_progress and not self._in_progress[0].counts:
            self._in_progress.popleft()  # these requests ended before older ones
        self._in_progress.append(turn)

    def _uncount(self, turn: RequestTurn) -> None:
        self._contention.release_light(turn)
        if turn.counts:
            turn.counts = False
            self._counted -= turn.count
            self._bytes -= turn.size

    def _let_on(self) -> None:
        now = trio.current_time()
        while self._waiting and self._may(self._waiting[0], now):
            turn = self._waiting.popleft()
            assert turn.begun is not None, "it waits"
            self._begin(turn, now)
            turn.begun.set()
        if self._waiting:
            wait = self._waiting[0].wait
            assert wait is not None, "it waits"
            wait.deadline = min(wait.deadline, now + self._patience(now))
