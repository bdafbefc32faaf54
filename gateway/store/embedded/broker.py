"""
A durable namespace for one machine, in one SQLite file. An acknowledged message survives a power
cut. Locks don't survive a restart, so locked messages are delivered again.

Supports all that `LocalBroker` does, with sessions, topics and transactions.
"""

import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Self, TypeVar

import apsw
import attrs
import trio

from gateway.brokers.lock_tokens import lock_tokens
from gateway.domain.clocks.clock_note import ClockNote
from gateway.domain.clocks.times import Now, to_micros
from gateway.domain.events.gateway import Doubtful
from gateway.domain.identity import STORE, Identity
from gateway.domain.message import Message
from gateway.domain.option_fields import BYTES
from gateway.moments import Moments
from gateway.ports import WallClock
from gateway.store.embedded.committer import Committer
from gateway.store.embedded.files import Disk, StoreError
from gateway.store.embedded.store import Store
from gateway.store.embedded.writer import CommitStats, Writer
from gateway.store.engine.content_needs import Packing
from gateway.store.engine.namespace import Namespace
from gateway.store.local.broker import LocalBroker, LocalOptions
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.step import Step
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.sql.action import compile_action
from gateway.wire.sql.filter import compile_filter

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class EmbeddedOptions(LocalOptions):
    """
    The limits of the operations that may wait for the disk at once. Operations above a limit wait
    before they begin.
    """

    max_pending_operations: int = 1000
    max_pending_bytes: int = attrs.field(default=16 * 1024 * 1024, metadata=BYTES)


class EmbeddedBroker(LocalBroker):
    """
    Implements `ports.Broker`, on disk. A context manager that opens the store
    (raises `StoreInUse`, `StoreDamaged`, `StoreError`) and closes it.

    `failed` is set when the disk has failed: all later calls raise `Unavailable`, and only a new
    process can find out what is really on the disk (exit code 75).
    """

    def __init__(
        self,
        path: Path,
        clock: WallClock,
        rng: random.Random,
        options: EmbeddedOptions | None = None,
        hooks: LocalHooks | None = None,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(Moments(clock), hooks or LocalHooks())
        self._path = path
        self._rng = rng
        self._options = options or EmbeddedOptions()
        self._disk = disk or Disk()
        self._doubts: tuple[str, ...] = ()
        self._store_identity = 0
        self._clock = clock
        self._noted = ClockNote()
        self._writer = Writer(
            open=self._open,
            tell=self._publish,
            most_steps=self._options.max_pending_operations,
            most_bytes=self._options.max_pending_bytes,
        )

    @property
    def failed(self) -> trio.Event:
        return self._writer.failed

    @property
    def commits(self) -> CommitStats:
        return self._writer.stats

    @property
    def is_open(self) -> bool:
        """False until `open` has returned: until then all calls raise `Unavailable`."""
        return self._writer.is_open

    async def open(self) -> None:
        """
        Open the store; again, if that failed. Entering the context does the same.

        Raises:
            StoreInUse, StoreDamaged, StoreError: it can't be opened.
        """
        await self._writer.start()
        opened = to_micros(self._clock())
        self._moments.begin(self._noted.shift_at(opened, self._disk.boot()))
        self._run_due_work()
        if self.hooks.observer is not None:
            for doubt in self._doubts:
                self.hooks.observer.report(Doubtful(text=doubt))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.close()
        await self._writer.stop()  # noqa: ASYNC102 it is shielded inside, with a limit

    @property
    def _identity(self) -> Identity:
        return Identity(STORE, f"{self._store_identity:016x}")

    def _run(self, step: Step[T]) -> Awaitable[T]:
        return self._writer.run(step)

    def _post(self, step: Step[Any]) -> None:
        self._writer.post(step)

    def _now(self) -> Now:
        return self._writer.now(self._moments.now)

    def _pack(self, message: Message) -> tuple[bytes, int]:
        content = encode_message(message)
        return content, len(content)

    def unpack(self, content: Any) -> Message:
        return decode_message(content)

    def _open(self) -> Committer:
        """Runs in the writer's thread."""
        store = Store.open(self._path, lambda: self._rng.getrandbits(63), self._disk)
        new_token = lock_tokens(self._rng)
        try:
            namespace = Namespace(
                max_message_size=self._options.max_message_size,
                max_queues=self._options.max_queues,
                create_missing=self._options.create_missing,
                store=store,
                new_token=new_token,
                packing=Packing(self._pack, self.unpack),
                compile_sql=lambda sql: compile_filter(sql.expression, sql.parameters),
                compile_action=lambda sql: compile_action(
                    sql.expression, sql.parameters, new_token
                ),
            )
        except StoreError:
            store.forsake()
            raise
        except apsw.Error as error:
            store.forsake()
            raise StoreError(f"{self._path}: {error}") from error
        self._doubts = store.doubts
        self._store_identity = store.identity
        self._noted = store.clock
        return Committer(store, namespace, self._is_watched)
