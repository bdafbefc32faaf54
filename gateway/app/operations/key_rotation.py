"""
`pairgate keys rotate` writes a new key to its file. The old key stays valid until `--finish`.

    an access policy, an account    the new key is `key`, the old key `second_key`
    the envelope                    the new key is added last and only verifies; `--use` puts it
                                    first, where it signs; `--finish` removes the others
"""

import enum
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.new_config import new_key
from gateway.config.editing import CannotEdit, with_value
from gateway.config.errors import ConfigError
from gateway.config.file import Loaded, parse
from gateway.config.showing import toml_value
from gateway.domain.health.process_records import PairProcess
from gateway.domain.status.process import Status
from gateway.durable import sync_folder

ENVELOPE: Final = "envelope"
_OLD: Final = ".old"  # the end of the name of an old key's file


class Stage(enum.Enum):
    """The progress of a rotation."""

    BEGUN = "begun"  # the new and the old key are valid
    USED = "used"  # the new key of the envelope signs
    FINISHED = "finished"  # only the new key is valid
    NONE = "none"  # there was nothing to finish


@attrs.frozen(kw_only=True)
class KeyRotation:
    """The result of one step, without any secret."""

    name: str
    stage: Stage
    changed: bool
    files: tuple[str, ...]  # of the valid keys, the newest first
    next_step: str


@attrs.frozen(kw_only=True)
class _ConfigText:
    """The configuration's file, its text and its table."""

    file: Path
    text: str
    table: Mapping[str, Any]
    environ: Mapping[str, str]

    def save(self, text: str) -> None:
        """
        Replace the file in one step, if the text is a valid configuration.

        Raises:
            Failure: the text isn't valid, the file was edited meanwhile, or it can't be written.
        """
        if self.file.read_text("utf-8-sig") != self.text:
            raise Failure(f"{self.file} was changed meanwhile, and is left as it is: try again")
        try:
            parse(text, source=str(self.file), folder=self.folder, environ=self.environ)
        except ConfigError as error:
            raise Failure(f"{self.file} is left as it is: {error}", ExitCode.WRONG) from error
        _replace(self.file, text, like=self.file)

    @property
    def folder(self) -> Path:
        return self.file.resolve().parent


def rotate(
    loaded: Loaded, file: Path, name: str, environ: Mapping[str, str], *, finish: bool
) -> KeyRotation:
    """
    Rotate the key of that access policy or account by one step: write a new key, or with `finish`
    remove the old one. A step that was completed before changes nothing; an interrupted step is
    completed.

    Raises:
        Failure: there is no such policy or account, or its key isn't in a file that can be written.
    """
    place = _ConfigText(
        file=file, text=loaded.text, table=tomllib.loads(loaded.text), environ=environ
    )
    section, entry = _entry(place, name)
    path = _file_of(entry.get("key"), f"{section} {name!r}: key")
    _refuse_a_shared_file(place, name, path)
    second, old = entry.get("second_key"), f"{path}{_OLD}"
    if second is not None and second != {"file": old}:
        text = f"{section} {name!r} has a second_key of its own: both keys are in use; remove it"
        raise Failure(f"{text} when no client uses it", ExitCode.WRONG)
    if finish:
        return _finish_policy(place, section, name, path, is_under_way=second is not None)
    return _begin_policy(place, section, name, path, is_under_way=second is not None)


def backlog_doubt(status: Status | None) -> str:
    """
    The reason why the backlog or the local spool may have messages under an old key of the
    envelope; empty: they have none.
    """
    if status is None or status.pair is None:
        return "no gateway here tells whether messages wait on the backlog"
    backlog = status.pair.backlog
    # A 0 that was only counted isn't what the secondary has said.
    is_known = backlog.pending or backlog.is_empty
    counts = {"on the backlog": backlog.pending if is_known else None}
    if status.pair.spool is not None:
        counts["in the local spool"] = status.pair.spool.pending
    for place, pending in counts.items():
        if pending is None:
            return f"the number of messages {place} isn't known"
        if pending:
            return f"{pending} messages wait {place}"
    return ""


@attrs.frozen(kw_only=True)
class KeysRead:
    """The envelope's keys that a process of the pair has read, by its record."""

    process: str
    keys: tuple[str, ...] | None  # their ids, the one that signs first; None: not told
    confirmed: bool  # it has those that it needs

    @property
    def text(self) -> str:
        """The keys for people."""
        return "its keys aren't known" if self.keys is None else f"it has {', '.join(self.keys)}"


@attrs.frozen(kw_only=True)
class PairKeys:
    """The envelope's keys that the processes of a pair have read; `unknown` gives the reason."""

    read: tuple[KeysRead, ...] = ()  # of the processes that are known
    unknown: str = ""  # why there may be others; empty: there are none

    @property
    def lacking(self) -> tuple[KeysRead, ...]:
        """The processes that don't have the keys that they need, or don't tell."""
        return tuple(each for each in self.read if not each.confirmed)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it isn't certain that each process of the pair has its keys; empty: it is."""
        found = [f"{each.process}: {each.text}" for each in self.lacking]
        if self.unknown:
            found.append(f"other processes aren't known: {self.unknown}")
        return tuple(found)


def keys_of_pair(status: Status | None, confirms: Callable[[PairProcess], bool]) -> PairKeys:
    """The keys of the pair's processes that are alive by their records. None: no gateway tells."""
    if status is None or status.pair is None:
        return PairKeys()
    read = tuple(
        KeysRead(process=each.name, keys=each.keys, confirmed=confirms(each))
        for each in status.pair.processes
        if each.state == "alive"
    )
    return PairKeys(read=read, unknown=status.pair.reach_unknown)


def lets_go_on(
    keys: Sequence[str], *, use: bool, finish: bool
) -> Callable[[PairProcess], bool] | None:
    """
    The condition on each process of the pair for that step: it has the newest of these keys, before
    it signs; it signs with it, before the others end. None: the step changes nothing.
    """
    newest = max(keys, key=_number, default="")
    if finish and len(keys) > 1:
        return lambda each: (each.keys or ())[:1] == (newest,)
    if use and keys[:1] != [newest]:
        return lambda each: newest in (each.keys or ())
    return None


def rotate_envelope(
    loaded: Loaded, file: Path, environ: Mapping[str, str], *, use: bool, finish: bool
) -> KeyRotation:
    """
    Rotate the key of the envelope by one step: add a new key that verifies, with `use` let the
    newest key sign, or with `finish` remove all other keys. Repeated and interrupted steps are as
    in `rotate`.

    Raises:
        Failure: the configuration names no keys of the envelope in files, or it can't be written.
    """
    place = _ConfigText(
        file=file, text=loaded.text, table=tomllib.loads(loaded.text), environ=environ
    )
    keys = place.table.get("pairing", {}).get("envelope_keys", [])
    if not keys:
        raise Failure(
            "pairing.envelope_keys: is missing; a key that a gateway has made for itself can't be"
            " rotated. Name a key in [pairing] envelope_keys first",
            ExitCode.WRONG,
        )
    entries = [dict(each) for each in keys]
    if finish:
        return _finish_envelope(place, entries)
    if use:
        return _use_envelope(place, entries)
    return _begin_envelope(place, entries)


def _begin_policy(
    place: _ConfigText, section: str, name: str, path: str, *, is_under_way: bool
) -> KeyRotation:
    key, old = place.folder / path, place.folder / f"{path}{_OLD}"
    current, changed = _read(key), False
    if not is_under_way:
        if old.exists() and _read(old) != current:
            text = f"{old} is there already: somebody else rotates this key now, or an earlier"
            raise Failure(f"{text} rotation wasn't finished: pairgate keys rotate {name} --finish")
        value = toml_value({"file": f"{path}{_OLD}"})
        edited = _edited(place, section, {"name": name}, "second_key", value)
        _replace(old, f"{current}\n", like=key)
        place.save(edited)
        changed = True
    if _read(old) == current:  # otherwise an earlier step has written the new key
        _replace(key, f"{new_key()}\n", like=key)
        changed = True
    return KeyRotation(
        name=name,
        stage=Stage.BEGUN,
        changed=changed,
        files=(str(key), str(old)),
        next_step=f"give clients the key in {key}, then: pairgate keys rotate {name} --finish",
    )


def _finish_policy(
    place: _ConfigText, section: str, name: str, path: str, *, is_under_way: bool
) -> KeyRotation:
    key, old = place.folder / path, place.folder / f"{path}{_OLD}"
    if is_under_way and _read(old) == _read(key):
        text = f"{section} {name!r}: the rotation was interrupted before the new key was written"
        raise Failure(f"{text}; run it again without --finish")
    if is_under_way:
        place.save(_edited(place, section, {"name": name}, "second_key", None))
    changed = is_under_way or old.exists()
    with suppress(FileNotFoundError):
        old.unlink()
    return KeyRotation(
        name=name,
        stage=Stage.FINISHED if changed else Stage.NONE,
        changed=changed,
        files=(str(key),),
        next_step="",
    )


def _begin_envelope(place: _ConfigText, entries: list[dict[str, Any]]) -> KeyRotation:
    changed = len(entries) == 1
    if changed:
        path = _file_of(entries[0].get("key"), "pairing.envelope_keys[0].key")
        identity = _next_id([str(each["id"]) for each in entries])
        fresh = str(Path(path).with_name(f"{ENVELOPE}-{identity}"))
        if not (place.folder / fresh).exists():  # otherwise an interrupted step has written it
            _replace(place.folder / fresh, f"{new_key()}\n", like=place.folder / path)
        entries.append({"id": identity, "key": {"file": fresh}})
        _save_keys(place, entries)
    return _of_envelope(
        place,
        entries,
        Stage.BEGUN,
        changed=changed,
        next_step="give the new key to all gateways and syphons of the pair and reload them, then:"
        " pairgate keys rotate envelope --use",
    )


def _use_envelope(place: _ConfigText, entries: list[dict[str, Any]]) -> KeyRotation:
    if len(entries) == 1:
        return _of_envelope(place, entries, Stage.NONE, changed=False, next_step="")
    newest = _newest(entries)
    changed = entries[0] is not newest
    if changed:
        entries = [newest, *(each for each in entries if each is not newest)]
        _save_keys(place, entries)
    return _of_envelope(
        place,
        entries,
        Stage.USED,
        changed=changed,
        next_step="do this for all gateways and syphons of the pair; when no message from before"
        " this step is on the backlog or in a local spool: pairgate keys rotate envelope --finish",
    )


def _finish_envelope(place: _ConfigText, entries: list[dict[str, Any]]) -> KeyRotation:
    if len(entries) > 1 and entries[0] is not _newest(entries):
        text = "the new key doesn't sign yet: pairgate keys rotate envelope --use"
        raise Failure(f"pairing.envelope_keys: {text}", ExitCode.WRONG)
    kept, changed = entries[:1], len(entries) > 1
    if changed:
        _save_keys(place, kept)
    return _of_envelope(
        place,
        kept,
        Stage.FINISHED if changed else Stage.NONE,
        changed=changed,
        next_step="do this for all gateways and syphons of the pair" if changed else "",
    )


def _of_envelope(
    place: _ConfigText,
    entries: list[dict[str, Any]],
    stage: Stage,
    *,
    changed: bool,
    next_step: str,
) -> KeyRotation:
    named = (each.get("key", {}).get("file") for each in entries)
    return KeyRotation(
        name=ENVELOPE,
        stage=stage,
        changed=changed,
        files=tuple(str(place.folder / path) for path in named if path is not None),
        next_step=next_step,
    )


def _save_keys(place: _ConfigText, entries: list[dict[str, Any]]) -> None:
    place.save(_edited(place, "pairing", {}, "envelope_keys", toml_value(entries)))


def _newest(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry with the highest number as its id. This command makes only numbers as ids."""
    newest = max(entries, key=lambda each: _number(str(each["id"])))
    if not _number(str(newest["id"])):
        text = "pairing.envelope_keys: no id is a number; change their order by hand"
        raise Failure(text, ExitCode.WRONG)
    return newest


def _next_id(known: list[str]) -> str:
    return str(max([0, *map(_number, known)]) + 1)


def _number(identity: str) -> int:
    return int(identity) if identity.isascii() and identity.isdigit() else 0


def _entry(place: _ConfigText, name: str) -> tuple[str, Mapping[str, Any]]:
    found = [
        (section, entry)
        for section in ("access", "accounts")
        for entry in place.table.get(section, [])
        if entry.get("name") == name
    ]
    if not found:
        known = [
            str(entry.get("name"))
            for section in ("access", "accounts")
            for entry in place.table.get(section, [])
        ]
        text = f"no [[access]] and no [[accounts]] is named {name!r}"
        raise Failure(f"{text}; there are: {', '.join(known) or 'none'}", ExitCode.WRONG)
    if len(found) > 1:
        text = f"an [[access]] and an [[accounts]] are named {name!r}: rename one of them"
        raise Failure(text, ExitCode.WRONG)
    return found[0]


def _refuse_a_shared_file(place: _ConfigText, name: str, path: str) -> None:
    """
    Refuse a key file that another name uses, too: its clients would get a new key, and their old
    key wouldn't stay valid.
    """
    for section in ("access", "accounts"):
        for entry in place.table.get(section, []):
            if entry.get("name") == name:
                continue
            for key in ("key", "second_key"):
                match entry.get(key):
                    case {"file": str(other)} if place.folder / other == place.folder / path:
                        text = f"{section} {entry.get('name')!r} has the same file as its {key}"
                        raise Failure(f"{path}: {text}: give it one of its own", ExitCode.WRONG)


def _file_of(reference: object, named: str) -> str:
    match reference:
        case {"file": str(path)}:
            return path
    text = "is not in a file: change it where it is kept (docs/how-to/secure/change-keys.md)"
    raise Failure(f"{named} {text}", ExitCode.WRONG)


def _edited(
    place: _ConfigText, section: str, wanted: dict[str, Any], key: str, value: str | None
) -> str:
    try:
        return with_value(place.text, section, wanted, key, value)
    except CannotEdit as error:
        by_hand = f"write {key} = {value} by hand" if value else f"remove {key} by hand"
        raise Failure(f"{place.file}: {error}; {by_hand}", ExitCode.WRONG) from error


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _replace(path: Path, text: str, *, like: Path) -> None:
    """
    Replace the file in one step that lasts, so that no reader sees half of it. Its owner and mode
    are those of the file `like`: the gateway may run as another user.
    """
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.new")
    try:
        _write(fresh, text, like.stat())
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Failure(f"{error.filename or path}: {error.strerror}") from error


def _write(path: Path, text: str, like: os.stat_result) -> None:
    path.unlink(missing_ok=True)  # from an interrupted step
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, like.st_uid, like.st_gid)
        os.fchmod(descriptor, like.st_mode & 0o777)
        file.write(text)
        file.flush()
        os.fsync(descriptor)
