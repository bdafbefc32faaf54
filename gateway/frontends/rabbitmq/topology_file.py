"""
Keeps what is known of the primary's queues, exchanges and bindings in a file beside the pair's
state, so that an application can start in an outage that began before a restart of the gateway.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.errors import starting_thread
from gateway.domain.events.gateway import Doubtful
from gateway.durable import make_private_folder, replace_file
from gateway.frontends.rabbitmq.known_topology import KnownTopology
from gateway.ports import Observer
from gateway.wire.rabbitmq.frames import ProtocolError
from gateway.wire.rabbitmq.relayed import FrameReader

NAME: Final = "rabbitmq.json"
OWN: Final = "rabbitmq-queues.json"  # of what the gateway alone keeps, and no RabbitMQ
EVERY: Final = 10.0  # seconds between two writings: a start declares many things one by one
AT_ONCE: Final = 0.01  # where each declaration waits for it: what comes meanwhile is written once
# Bytes; of 20,000 requests of a kilobyte, in base64, with their vhosts.
_MOST_BYTES: Final = 64 * 1024 * 1024
_VERSION: Final = 1  # of the file's form; another one isn't read


@attrs.define(eq=False, kw_only=True)
class TopologyFile:
    """A service: writes what is known when it changes. What can't be written is told once."""

    path: Path
    known: KnownTopology
    observer: Observer
    every: float = EVERY
    _failed: bool = attrs.field(default=False, init=False)
    _tried: int = attrs.field(default=0, init=False)  # the last version that was to be written
    _attempts: Changes = attrs.field(factory=Changes, init=False)

    def restore(self) -> None:
        """Read what the process before knew. A file that can't be read is written again."""
        try:
            if self.path.exists():
                self.known.restore(_parse(self.path))
        except (OSError, ValueError, LookupError, TypeError, ProtocolError) as error:
            self.observer.report(Doubtful(text=f"{self.path}: nothing is read of it: {error}"))

    async def flush(self) -> None:
        """Return when what is known now is written, or can't be."""
        version = self.known.changes.version
        while self._tried < version:
            await self._attempts.wait_next()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; what is known then is written last."""
        changes = self.known.changes
        written = self._tried = changes.version  # what was restored is there
        task_status.started()
        try:
            while True:
                version = await changes.wait(written)
                if await self._save():
                    written = version
                self._tried = version
                self._attempts.notify()
                await trio.sleep(self.every)
        finally:
            if changes.version != written:
                # Some megabytes at most, at the end of the process.
                self._report(self._write(self.known.requests()))

    async def _save(self) -> bool:
        """True: it is written. False: it can't be, and is tried again."""
        try:
            with starting_thread():
                problem = await trio.to_thread.run_sync(self._write, self.known.requests())
        except OSError as error:
            problem = str(error)
        self._report(problem)
        return not problem

    def _write(self, known: Iterable[tuple[str, bytes]]) -> str:
        """Return why it can't be written; empty: it is."""
        rows = [(vhost, b64encode(frame).decode()) for vhost, frame in known]
        try:
            make_private_folder(self.path.parent)
            replace_file(self.path, json.dumps({"version": _VERSION, "known": rows}).encode())
        except OSError as error:
            return str(error)
        return ""

    def _report(self, problem: str) -> None:
        if problem and not self._failed:
            text = f"{self.path}: queues and exchanges aren't kept: {problem}"
            self.observer.report(Doubtful(text=text))
        self._failed = bool(problem)


def _parse(path: Path) -> Iterator[tuple[str, Any]]:
    """Each vhost with a request."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"at most {_MOST_BYTES} bytes expected")
    content: Any = json.loads(path.read_bytes())
    if content["version"] != _VERSION:
        raise ValueError(f"version {_VERSION} expected")
    for vhost, row in content["known"]:
        [frame] = FrameReader().feed(b64decode(row, validate=True))
        yield str(vhost), frame.method()
