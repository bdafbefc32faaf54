"""
The namespaces of our own without Trio: each call is one step, at a moment that a test sets.

The embedded one runs its real committer and store, without the thread: a crash copies the files
as they are and opens the copy, as the next process would find them.
"""

import itertools
import math
import random
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs

from gateway.brokers.lock_tokens import lock_tokens
from gateway.brokers.meter import Meter
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.identity import MEMORY, Identity
from gateway.domain.message import Message
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk
from gateway.store.embedded.store import Store
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.deliveries import StepReport
from gateway.store.engine.entity_store import EntityStore
from gateway.store.engine.namespace import Namespace
from gateway.store.local.broker import LocalBroker
from gateway.store.local.memory import MemoryEntityStore
from gateway.store.local.step import Step
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.sql.action import compile_action
from gateway.wire.sql.filter import compile_filter

T = TypeVar("T")

MOST_TIMEOUTS = 1000  # in one wait
START = 1_767_225_600_000_000  # 2026, in microseconds


def done(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of the call, which must not wait."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


@attrs.define(eq=False)
class Watch:
    """`Moments`, set by hand. A new process counts from the beginning."""

    wall: int = START
    booted: int = START
    expired: float = 0.0  # when the timer expired last: not a rounding error before it
    shift: int = 0

    def now(self) -> Now:
        return Now(self.wall, max((self.wall - self.booted) / 1e6, self.expired))


class SteppedBroker(LocalBroker):
    """A broker in memory, with messages as bytes, so that both kinds report the same sizes."""

    can_crash = False

    def __init__(self) -> None:
        self.watch = Watch()
        super().__init__(self.watch)  # type: ignore[arg-type]  # it only asks for `now`
        self.meter = Meter(clock=lambda: self.watch.now().monotonic)
        self.due: float | None = None
        self.namespace = self.namespace_on(MemoryEntityStore())

    def namespace_on(self, store: EntityStore) -> Namespace:
        return Namespace(
            max_message_size=1024 * 1024,
            max_queues=100,
            create_missing=False,
            store=store,
            new_token=lock_tokens(random.Random(0)),
            packing=Packing(self._pack, self.unpack),
            compile_sql=lambda sql: compile_filter(sql.expression, sql.parameters),
            compile_action=lambda sql: compile_action(
                sql.expression, sql.parameters, lock_tokens(random.Random(1))
            ),
        )

    def wait(self, until: int) -> None:
        """Let time pass until that date, and the timer expire on its way."""
        timeouts = 0
        while self.due is not None and self._date_of(self.due) <= until:
            timeouts += 1
            assert timeouts < MOST_TIMEOUTS, "the timer expires again and again"
            self.watch.wall = max(self.watch.wall, self._date_of(self.due))
            self.watch.expired = max(self.watch.expired, self.due)
            self.due = None
            self._post(
                self._step(
                    EntityPath(""), lambda space, now: space.run_due_work(now, lambda _key: False)
                )
            )
        self.watch.wall = until

    def close(self) -> None:
        """Nothing to do: a broker in memory leaves nothing."""

    async def _run(self, step: Step[T]) -> T:
        self._post(step)
        return step.result()

    def _post(self, step: Step[Any]) -> None:
        step.run(self.namespace)
        self._publish(self.namespace.report(step.now))

    @property
    def _identity(self) -> Identity:
        return Identity(MEMORY, "stepped")

    def _publish(self, report: StepReport) -> None:
        self.due = report.next_due_work

    def _pack(self, message: Message) -> tuple[bytes, int]:
        content = encode_message(message)
        return content, len(content)

    def unpack(self, content: Any) -> Message:
        return decode_message(content)

    def _date_of(self, due: float) -> int:
        return self.watch.wall if due == -math.inf else self.watch.booted + round(due * 1e6)


class SteppedEmbedded(SteppedBroker):
    """Each step is one transaction, as for a single client."""

    can_crash = True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._in_doubt = False
        self._folders = (folder / str(number) for number in itertools.count())
        self._folder = next(self._folders)
        self._open()

    def _open(self) -> None:
        self._store = Store.open(self._folder / "a.db", lambda: 1, Disk())
        self.namespace = self.namespace_on(self._store)
        self._committer = Committer(self._store, self.namespace)
        self.watch.booted, self.watch.expired = self.watch.wall - 10**6, 0.0
        self.wait_for_due_work()

    def wait_for_due_work(self) -> None:
        """As the broker does when it has opened the store."""
        self._post(
            self._step(
                EntityPath(""), lambda space, now: space.run_due_work(now, lambda _key: False)
            )
        )

    def restart(self) -> None:
        self.close()
        self._open()

    def crash(self) -> None:
        """End as by SIGKILL, and open the store that is left."""
        old, self._folder = self._folder, next(self._folders)
        self._folder.mkdir(parents=True)
        for name in ("a.db", "a.db-wal", "a.db.hwm"):
            if (old / name).exists():
                shutil.copy(old / name, self._folder / name)
        self._store.forsake()
        shutil.rmtree(old)
        self._open()

    def crash_within(self, call: Coroutine[Any, Any, Any]) -> None:
        """The same, with that call done and not committed."""
        self._store.begin(self.watch.now())
        self._in_doubt = True
        with suppress(BrokerError):
            done(call)
        self._in_doubt = False
        self.crash()

    def tidy(self) -> None:
        """Tidy the store, as the writer's thread does when it is idle."""
        if self._committer.untidy:
            self._committer.tidy()
        assert not self._committer.failed

    def close(self) -> None:
        self._committer.close()
        assert not self._committer.failed

    def _post(self, step: Step[Any]) -> None:
        if self._in_doubt:
            step.run(self.namespace)
            return
        report = self._committer.run([step])
        self._committer.shorten_log()
        assert not self._committer.failed, self._committer.failed
        self._publish(report)
