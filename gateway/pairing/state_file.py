"""The state file: failed-over entities, orders of operators, entity cache; across restarts."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs
import cattrs.preconf.json
import trio

from gateway.changes import Changes
from gateway.domain.entity import EntityPath
from gateway.domain.errors import GatewayError, starting_thread
from gateway.domain.events.gateway import StateNotSaved, StateSaved
from gateway.domain.identity import Identity, parse_identity
from gateway.domain.operators.control import Override
from gateway.domain.operators.given_orders import GivenOrder
from gateway.durable import make_private_folder, refuse_foreign_link, sync_folder
from gateway.pairing.additions import Kept
from gateway.pairing.entity_cache import EntityCache, KnownEntity
from gateway.pairing.entity_record import EntityState
from gateway.pairing.records.order_book import OrderBook
from gateway.pairing.state_table import DIVERTED
from gateway.pairing.states import EntityStates
from gateway.pairing.syphon.destination import Destination
from gateway.pairing.syphon.pauses import Pauses
from gateway.ports import Observer

VERSION: Final = 2
BEFORE: Final = 1  # the version whose key of the entity states is `standings`
BETWEEN_SAVES: Final = 0.2  # seconds: a burst of changes is one write
RETRY: Final = 5.0
LAST_SAVE: Final = 2.0

_converter = cattrs.preconf.json.make_converter()
_converter.register_structure_hook(EntityPath, lambda text, _: EntityPath(text))
_converter.register_unstructure_hook(EntityPath, lambda entity: entity.name)
_converter.register_structure_hook(Identity, lambda text, _: parse_identity(text))
_converter.register_unstructure_hook(Identity, str)


class StateFileError(GatewayError):
    """The state file can't be read. It isn't overwritten: an operator must repair or remove it."""


@attrs.frozen(kw_only=True)
class SavedState:
    """The content of the file. Dates are wall-clock dates, which survive the process."""

    version: int = VERSION
    states: tuple[EntityState, ...] = ()
    known: tuple[KnownEntity, ...] = ()
    primary: Identity | None = None  # as reported last
    pins: tuple[Override, ...] = ()
    pauses: tuple[Override, ...] = ()
    orders: tuple[GivenOrder, ...] | None = None  # given here; None: by an earlier version
    followed: tuple[GivenOrder, ...] = ()  # given at other processes of the pair
    followed_until: datetime | None = None  # the date until which these hold
    # By key: what extensions know if the process ended in good order.
    kept: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True)
class StateFile:
    """
    Keeps entity states, the orders of operators, the entity cache and the primary's identity in one
    small JSON file.
    """

    path: Path
    states: EntityStates
    entity_cache: EntityCache
    destination: Destination
    observer: Observer
    pauses: Pauses = attrs.field(factory=Pauses)
    book: OrderBook | None = None
    kept: Sequence[Kept] = ()  # of extensions
    between_saves: float = BETWEEN_SAVES  # seconds
    retry: float = RETRY  # seconds from a failed save to the next
    _dirty: Changes = attrs.field(factory=Changes, init=False)
    _saved: tuple[int, ...] = attrs.field(default=(), init=False)  # the versions at the last save
    _identity: Identity | None = attrs.field(default=None, init=False)  # in the file
    _is_held: bool = attrs.field(default=False, init=False)
    _ends: bool = attrs.field(default=False, init=False)  # no send begins any more
    _has_failed: bool = attrs.field(default=False, init=False)  # the last save
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def restore(self) -> None:
        """
        Restore the content of the file. A missing file counts as empty.

        Raises:
            StateFileError: the file can't be read, is of another version, or is behind another
                user's symbolic link.
        """
        doubted = False
        try:
            refuse_foreign_link(self.path)
            try:
                saved = self._parse(self.path)
            except FileNotFoundError:
                saved, doubted = self._parse(_doubted(self.path)), True
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateFileError(self._problem(error)) from error
        except StateFileError as error:
            raise StateFileError(f"{self.path}: {error}") from error
        self._identity = saved.primary
        self.destination.restore(saved.primary)
        self.entity_cache.restore(saved.known)
        self.states.restore(saved.states)
        self.states.pins.restore(saved.pins)
        self.pauses.overrides.restore(saved.pauses)
        if self.book is not None:
            self._restore_orders(self.book, saved)
        for each in self.kept if not doubted else ():
            each.restore(saved.kept.get(each.key, ()))

    def _restore_orders(self, book: OrderBook, saved: SavedState) -> None:
        if saved.orders is None:
            book.adopt_overrides(saved.pins, saved.pauses)
            return
        book.adopt(saved.orders)
        if saved.followed_until is not None and saved.followed_until > book.clock():
            book.learn(saved.followed, saved.followed_until)
        force = book.in_force()
        self.states.pins.restore(force.pins)
        self.pauses.overrides.restore(force.pauses)

    def _parse(self, path: Path) -> SavedState:
        return parse(path.read_bytes(), [each.key for each in self.kept])

    async def doubt(self) -> None:
        """
        Let the next start trust the file no more to tell what only a good end may tell, as it
        couldn't be written. It gets another name, which a full disk doesn't prevent.
        """
        try:
            with starting_thread():
                await trio.to_thread.run_sync(_rename, self.path, _doubted(self.path))
        except OSError as error:
            self.observer.report(StateNotSaved(reason=f"{self.path}: {error}"))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Save after each change, atomically and durably; report a failure and try again.

        On cancellation, unsaved changes are saved first, within `LAST_SAVE` seconds.
        """
        # The primary may have reported another identity before this, which no watcher notices.
        is_known = self.destination.identity == self._identity
        self._saved = self._versions if is_known else ()
        async with trio.open_nursery() as nursery:
            for changes in self._watched:
                nursery.start_soon(self._watch, changes, changes.version)
            task_status.started()
            try:
                await self._save_after_changes()
            finally:
                self._ends = True
                unsaved = self._saved != self._versions  # even if no watcher has noticed it
                if unsaved or any(each.names() for each in self.kept):
                    with trio.move_on_after(LAST_SAVE, shield=True):
                        await self.save()

    @property
    def _watched(self) -> tuple[Changes, ...]:
        return (
            self.states.changes,
            self.entity_cache.changes,
            self.destination.changes,
            self.pauses.changes,
            *(() if self.book is None else (self.book.changes,)),
        )

    @property
    def _versions(self) -> tuple[int, ...]:
        return tuple(changes.version for changes in self._watched)

    async def _save_after_changes(self) -> None:
        seen = self._dirty.version
        if self._saved != self._versions:
            self._dirty.notify()
        while True:
            await self._dirty.wait(seen)
            await trio.sleep(self.between_saves)
            seen = self._dirty.version
            if not await self.save():
                self._dirty.notify()
                await trio.sleep(self.retry)

    async def _watch(self, changes: Changes, seen: int) -> None:
        while True:
            seen = await changes.wait(seen)
            self._dirty.notify()

    async def hold(self) -> None:
        """Save now, and then leave the file to another process, until `go_on`."""
        await self.save()
        self._is_held = True

    def go_on(self) -> None:
        """The file is this process's again: save what has changed."""
        self._is_held = False
        self._dirty.notify()

    async def save(self) -> bool:
        """
        Write the file now, unless it is held. False: that failed, and the failure was reported.
        """
        async with self._writing:
            return self._is_held or await self._save()

    async def _save(self) -> bool:
        lasting = [each for each in self.states.troubled() if each.state in DIVERTED]
        state = SavedState(
            states=tuple(lasting),
            known=tuple(self.entity_cache.all()),
            primary=self.destination.identity,
            pins=self.states.pins.all(),
            pauses=self.pauses.overrides.all(),
            orders=None if self.book is None else self.book.own,
            followed=() if self.book is None else self.book.others,
            followed_until=None if self.book is None else self.book.others_until,
            kept={each.key: each.names() if self._ends else () for each in self.kept},
        )
        versions = self._versions
        try:
            with starting_thread():
                await trio.to_thread.run_sync(_write, self.path, build(state))
        except OSError as error:
            return self._failed(self._problem(error))
        self._saved, self._identity = versions, state.primary
        if self._has_failed:
            self.observer.report(StateSaved(file=str(self.path)))
        self._has_failed = False
        return True

    def _failed(self, reason: str) -> bool:
        self._has_failed = True
        self.observer.report(StateNotSaved(reason=reason))
        return False

    def _problem(self, error: OSError) -> str:
        elsewhere = error.filename is not None and str(error.filename) != str(self.path)
        where = f"{self.path}: {error.filename}" if elsewhere else str(self.path)
        return f"{where}: {error.strerror}"


def build(state: SavedState) -> bytes:
    content = _converter.unstructure(state)
    kept = content.pop("kept")
    return json.dumps({**content, **kept}, indent=1).encode()


def parse(data: bytes, keys: Sequence[str] = ()) -> SavedState:
    """
    Read the file's content; `keys` are those of extensions.

    Raises:
        StateFileError: the content isn't JSON, has other fields, or is of another version.
    """
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateFileError(f"JSON expected: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version == BEFORE:
        content = {**content, "version": VERSION, "states": content.get("standings", [])}
    elif version != VERSION:
        raise StateFileError(f"version {VERSION} expected, found {version!r}")
    try:
        kept = {key: content[key] for key in keys if key in content}
        saved: SavedState = _converter.structure({**content, "kept": kept}, SavedState)
    except cattrs.BaseValidationError as error:
        problems = "; ".join(cattrs.transform_error(error))
        raise StateFileError(f"the fields don't match: {problems}") from error
    return saved


def _doubted(path: Path) -> Path:
    """The name of a state file that couldn't be written at the start."""
    return path.with_name(f"{path.name}.doubted")


def _rename(path: Path, name: Path) -> None:
    """Rename the file durably, if there is one."""
    with suppress(FileNotFoundError):
        path.replace(name)
        sync_folder(path.parent)


def _write(path: Path, data: bytes) -> None:
    """Replace the file so that a crash leaves the old or the new one, never half of one."""
    make_private_folder(path.parent)
    beside = path.with_name(f"{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _doubted(path).unlink(missing_ok=True)
    sync_folder(path.parent)
