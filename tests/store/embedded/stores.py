"""Stores in folders of tests, and disks that fail on demand."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event
from gateway.domain.message import Message
from gateway.ports import Broker, Observer
from gateway.store.embedded import checksums
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.embedded.files import Disk
from gateway.store.local.hooks import LocalHooks

ORDERS = EntityPath.parse("orders")


def real_date() -> datetime:
    return datetime.now(UTC)


def embedded(
    folder: Path, disk: Disk | None = None, observer: Observer | None = None, **options: Any
) -> EmbeddedBroker:
    return EmbeddedBroker(
        folder / "a.db",
        real_date,
        random.Random(0),
        EmbeddedOptions(**{"create_missing": True, **options}),
        LocalHooks(observer=observer),
        disk,
    )


@attrs.define
class Events:
    """An observer that remembers."""

    seen: list[Event] = attrs.field(factory=list)

    def report(self, event: Event) -> None:
        self.seen.append(event)


def numbered(*numbers: object) -> list[Message]:
    return [Message(message_id=str(number), body=b"x" * 100) for number in numbers]


async def stored_ids(broker: Broker, queue: EntityPath = ORDERS) -> list[str]:
    info = await broker.inspect(queue)
    shown = await broker.peek(queue, limit=(info.active or 0) + 1)  # type: ignore[attr-defined]
    return [delivery.message.message_id for delivery in shown]


class FailingFile(apsw.VFSFile):
    def __init__(self, vfs: "FailingDisk", name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.disk = vfs

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self.disk.failing:
            raise apsw.IOError("the disk says no")
        super().xSync(flags)


class FailingDisk(apsw.VFS):
    """A VFS whose syncs fail as soon as `failing` is set."""

    failing = False

    def __init__(self, name: str) -> None:
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:  # noqa: N802
        return FailingFile(self, name, flags)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    vfs = FailingDisk("failing")
    try:
        yield vfs
    finally:
        vfs.unregister()


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """The database of a store that no process has open."""
    connection = apsw.Connection(str(path))
    checksums.teach(connection)
    try:
        yield connection
    finally:
        connection.close()


def seal(connection: apsw.Connection) -> None:
    """Set the checksums of all rows, as if the gateway had written them."""
    for table in checksums.SEALED:
        connection.execute(checksums.sealing(table))
