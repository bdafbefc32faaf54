"""
A store on a machine whose clock is wrong by days and years, at random: messages live as long as
their senders said by a clock that was always right.

A message may stay for longer by the time in which the machine was off, since nothing tells that.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.domain.clocks.clock_note import GRACE, Boot, ClockWatch
from gateway.domain.clocks.times import MICROSECOND, Now, to_date
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Message
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import Store
from tests.brokers.stepped import START, SteppedEmbedded, done

QUEUE: Final = EntityPath("q")
SECOND: Final = 10**6
HOUR: Final = 3600 * SECOND
DAY: Final = 24 * HOUR
# Microseconds from the right date to that of the clock. After another boot a wrong date that may be
# right is believed: no boot begins with one here.
BEFORE_THE_BUILD: Final = (-7 * 365 * DAY, 60 * SECOND - START)
SET: Final = (0, 0, 3 * DAY, 14 * 365 * DAY, *BEFORE_THE_BUILD)
LIVES: Final = (HOUR // 2, 5 * HOUR // 2, 61 * HOUR // 2)
SPANS: Final = (60 * SECOND, HOUR, 5 * HOUR, 40 * HOUR)


@attrs.define(eq=False)
class Host:
    """The clocks of a machine: `Moments` for its broker, and the right date."""

    right: int = START
    ahead: int = 0  # of the wall clock to the right date
    up: int = 0  # since the boot
    boots: int = 1
    off: int = 0  # for how long it was off, in all
    watch: ClockWatch = attrs.field(factory=ClockWatch)

    @property
    def shift(self) -> int:
        return self.watch.shift

    def now(self) -> Now:
        return self.watch.moment_at(to_date(self.right + self.ahead), self.up / SECOND)

    def boot(self) -> Boot:
        return Boot(str(self.boots), self.up)

    def pass_time(self, span: int) -> None:
        self.right += span
        self.up += span

    def boot_again(self, off: int, ahead: int) -> None:
        self.right += off
        self.off += off
        self.ahead, self.up, self.boots = ahead, 0, self.boots + 1


class ClockedStore(SteppedEmbedded):
    def __init__(self, folder: Path, host: Host) -> None:
        self.host = host
        self.meanwhile: Callable[[], None] = lambda: None
        super().__init__(folder)

    def _open(self) -> None:
        self.meanwhile()
        self.meanwhile = lambda: None
        host = self.host
        self._store = Store.open(self._folder / "a.db", lambda: 1, Disk(boot=host.boot))
        self.namespace = self.namespace_on(self._store)
        self._committer = Committer(self._store, self.namespace)
        host.watch = ClockWatch()
        host.watch.shift = self._store.clock.shift_at(host.right + host.ahead, host.boot())
        self._moments = host  # type: ignore[assignment]  # as in `SteppedBroker`
        self.wait_for_due_work()


@attrs.frozen
class Sent:
    at: int  # the right date
    off: int  # for how long the machine had been off
    life: int


class ClockMachine(RuleBasedStateMachine):
    folder: ClassVar[Path]
    numbers: ClassVar = itertools.count()

    @initialize(ahead=st.sampled_from(SET))
    def begin(self, ahead: int) -> None:
        self.host = Host(ahead=ahead)
        self.broker = ClockedStore(self.folder / str(next(self.numbers)), self.host)
        self.sent: dict[str, Sent] = {}
        done(self.broker.create_queue(QUEUE, QueueProperties()))

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.look()
            self.broker.close()

    @rule(life=st.sampled_from(LIVES))
    def send(self, life: int) -> None:
        name = str(len(self.sent))
        message = Message(message_id=name, body=b"x", time_to_live=life * MICROSECOND)
        done(self.broker.send(QUEUE, [message]))
        self.sent[name] = Sent(self.host.right, self.host.off, life)

    @rule(span=st.sampled_from(SPANS))
    def pass_time(self, span: int) -> None:
        self.host.pass_time(span)
        self.look()

    @rule(ahead=st.sampled_from(SET))
    def set_the_clock(self, ahead: int) -> None:
        self.host.ahead = ahead
        self.look()

    @rule(span=st.sampled_from(SPANS), ahead=st.sampled_from(SET), kill=st.booleans())
    def set_the_clock_while_it_is_down(self, span: int, ahead: int, kill: bool) -> None:
        def meanwhile() -> None:
            self.host.pass_time(span)
            self.host.ahead = ahead

        self.start_again(meanwhile, kill)

    @rule(off=st.sampled_from(SPANS), ahead=st.sampled_from((0, *BEFORE_THE_BUILD)))
    def boot_again(self, off: int, ahead: int) -> None:
        self.send(LIVES[0])  # what passes after the last commit may count as a part of the pause
        self.start_again(lambda: self.host.boot_again(off, ahead), kill=True)

    def start_again(self, meanwhile: Callable[[], None], kill: bool) -> None:
        self.broker.meanwhile = meanwhile
        if kill:
            self.broker.crash()
        else:
            self.broker.restart()
        self.look()

    def look(self) -> None:
        """Live messages are there; dead ones are gone once the clock is no longer in doubt."""
        host = self.host
        done(self.broker.inspect(QUEUE))  # sweeps
        found = {each.message.message_id for each in done(self.broker.peek(QUEUE, limit=1000))}
        ages = {name: host.right - sent.at for name, sent in self.sent.items()}
        alive = {name for name, sent in self.sent.items() if ages[name] < sent.life}
        dead = {
            name
            for name, sent in self.sent.items()
            if ages[name] - (host.off - sent.off) > sent.life + GRACE * SECOND
        }
        assert alive <= found, (alive - found, host)
        if host.now().trusted:
            assert not found & dead, (found & dead, host)
