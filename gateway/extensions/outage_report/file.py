"""Keeps the outages in a file beside the state of the pair, so that they survive a restart."""

import json
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json
import trio

from gateway.domain.errors import starting_thread
from gateway.domain.events.gateway import Doubtful
from gateway.durable import make_private_folder, replace_file
from gateway.extensions.outage_report.book import OutageBook
from gateway.extensions.outage_report.outage import RecordedOutage
from gateway.ports import Observer

NAME: Final = "outages.json"
MOST_BYTES: Final = 4 * 1024 * 1024  # ten outages with a hundred entities each have a tenth
EVERY: Final = 10.0  # seconds between two writings, while an outage goes on
_VERSION: Final = 1  # of the file's form; another one isn't read
_converter: Final = cattrs.preconf.json.make_converter()


@attrs.define(eq=False, kw_only=True)
class OutageFile:
    """A service: writes the outages when they change. What can't be written is told once."""

    path: Path
    book: OutageBook
    observer: Observer
    every: float = EVERY
    _failed: bool = attrs.field(default=False, init=False)

    def restore(self) -> None:
        """
        Read the outages of the process before. One that was under way ends with what was known of
        it. A file that can't be read is no outage, and is written again.
        """
        try:
            outages = _parse(self.path) if self.path.exists() else []
        except (OSError, ValueError, LookupError, TypeError, cattrs.BaseValidationError) as error:
            self.observer.report(Doubtful(text=f"{self.path}: no outages are read: {error}"))
            return
        self.book.restore(map(_ended, outages))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; the last state is written then."""
        task_status.started()
        written = self.book.changes.version
        try:
            while True:
                version = await self.book.changes.wait(written)
                if await self._save():
                    written = version
                await trio.sleep(self.every)
        finally:
            if self.book.changes.version != written:
                # Some kilobytes, at the end of the process.
                self._report(self._write(self._content()))

    async def _save(self) -> bool:
        """True: the outages are written. False: they can't be, and are tried again."""
        try:
            with starting_thread():
                problem = await trio.to_thread.run_sync(self._write, self._content())
        except OSError as error:
            problem = str(error)
        self._report(problem)
        return not problem

    def _content(self) -> bytes:
        outages = _converter.unstructure(list(self.book.all()))
        return json.dumps({"version": _VERSION, "outages": outages}).encode()

    def _write(self, content: bytes) -> str:
        """Return why it can't be written; empty: it is."""
        try:
            make_private_folder(self.path.parent)
            replace_file(self.path, content)
        except OSError as error:
            return str(error)
        return ""

    def _report(self, problem: str) -> None:
        if problem and not self._failed:
            self.observer.report(Doubtful(text=f"{self.path}: outages aren't kept: {problem}"))
        self._failed = bool(problem)


def _parse(path: Path) -> list[RecordedOutage]:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"at most {MOST_BYTES} bytes expected")
    content: Any = json.loads(path.read_bytes())
    if content["version"] != _VERSION:
        raise ValueError(f"version {_VERSION} expected")
    return _converter.structure(content["outages"], list[RecordedOutage])


def _ended(outage: RecordedOutage) -> RecordedOutage:
    if outage.ended is not None:
        return outage
    return attrs.evolve(outage, empty=None, interrupted=True)
