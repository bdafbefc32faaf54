"""What survives a restart: which entities are failed over or pinned, and what is known of them."""

import json
import os
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError
from gateway.domain.events import StateNotSaved
from gateway.pairing.changes import Changes
from gateway.pairing.knowledge import Knowledge, KnownEntity
from gateway.pairing.standings import DIVERTED, Standing, Standings
from gateway.ports import Observer

VERSION: Final = 1
BETWEEN_SAVES: Final = 0.2  # seconds: a burst of changes is one write
RETRY: Final = 5.0
LAST_SAVE: Final = 2.0

_converter = cattrs.preconf.json.make_converter()
_converter.register_structure_hook(EntityPath, lambda text, _: EntityPath(text))
_converter.register_unstructure_hook(EntityPath, lambda entity: entity.name)


class StateFileError(GatewayError):
    """The state file is there and can't be understood: somebody must look, it isn't overwritten."""


@attrs.frozen(kw_only=True)
class SavedState:
    """The content of the file. Dates are wall dates: monotonic times end with the process."""

    version: int = VERSION
    standings: tuple[Standing, ...] = ()
    known: tuple[KnownEntity, ...] = ()


@attrs.define(eq=False, kw_only=True)
class StateFile:
    """Keeps standings and knowledge in one small JSON file."""

    path: Path
    standings: Standings
    knowledge: Knowledge
    observer: Observer
    _dirty: trio.Event = attrs.field(factory=trio.Event, init=False)
    _saved: tuple[int, ...] = attrs.field(default=(), init=False)  # of each, its version

    def restore(self) -> None:
        """
        Take over what was saved. A file that isn't there is an empty one.

        Raises:
            StateFileError: it can't be read, or another version wrote it.
        """
        try:
            saved = parse(self.path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateFileError(f"{self.path}: {error.strerror}") from error
        except StateFileError as error:
            raise StateFileError(f"{self.path}: {error}") from error
        self.knowledge.restore(saved.known)
        self.standings.restore(saved.standings)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Save after each change, atomically and durably; report a failure and try again.

        Cancelled, it saves what has changed since, if that takes no longer than `LAST_SAVE`.
        """
        self._saved = self._versions
        async with trio.open_nursery() as nursery:
            for changes in self._watched:
                nursery.start_soon(self._watch, changes, changes.version)
            task_status.started()
            try:
                await self._save_after_changes()
            finally:
                if self._saved != self._versions:  # whether or not a watcher has seen it
                    with trio.move_on_after(LAST_SAVE, shield=True):
                        await self.save()

    @property
    def _watched(self) -> tuple[Changes, ...]:
        return self.standings.changes, self.knowledge.changes

    @property
    def _versions(self) -> tuple[int, ...]:
        return tuple(changes.version for changes in self._watched)

    async def _save_after_changes(self) -> None:
        while True:
            await self._dirty.wait()
            await trio.sleep(BETWEEN_SAVES)
            self._dirty = trio.Event()
            if not await self.save():
                self._dirty.set()
                await trio.sleep(RETRY)

    async def _watch(self, changes: Changes, seen: int) -> None:
        while True:
            seen = await changes.wait(seen)
            self._dirty.set()

    async def save(self) -> bool:
        """Write the file now; False: it failed, and the failure is reported."""
        lasting = [each for each in self.standings.troubled() if each.state in DIVERTED]
        state = SavedState(standings=tuple(lasting), known=tuple(self.knowledge.all()))
        versions = self._versions
        try:
            await trio.to_thread.run_sync(_write, self.path, build(state))
        except OSError as error:
            self.observer.report(StateNotSaved(reason=f"{self.path}: {error.strerror}"))
            return False
        except RuntimeError as error:  # no thread can be started
            self.observer.report(StateNotSaved(reason=f"{self.path}: {error}"))
            return False
        self._saved = versions
        return True


def build(state: SavedState) -> bytes:
    return json.dumps(_converter.unstructure(state), indent=1).encode()


def parse(data: bytes) -> SavedState:
    """
    Read the file's content.

    Raises:
        StateFileError: it is no JSON, has another shape, or is of another version.
    """
    try:
        content: Any = json.loads(data)
    except ValueError as error:
        raise StateFileError(f"JSON expected: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise StateFileError(f"version {VERSION} expected, found {version!r}")
    try:
        saved: SavedState = _converter.structure(content, SavedState)
    except cattrs.BaseValidationError as error:
        problems = "; ".join(cattrs.transform_error(error))
        raise StateFileError(f"it doesn't hold what it should: {problems}") from error
    return saved


def _write(path: Path, data: bytes) -> None:
    """Replace the file so that a crash leaves the old or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
