"""
Secrets, which the configuration names and doesn't contain.

    { env = "NAME" }                  an environment variable
    { file = "PATH" }                 a file, from the configuration's folder
    { systemd_credential = "NAME" }   a credential of systemd (LoadCredential=)
    { command = ["vault", "kv", "get", "..."], timeout = "10s" }     the output of a command
"""

import os
import re
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from gateway.config.values import seconds
from gateway.net.secret_files import why_exposed

CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"  # systemd sets it (systemd.exec(5), CREDENTIALS)
NOT_SHOWN: Final = "(not shown)"
_TIMEOUT: Final = 10.0  # seconds, of a command
_LONGEST: Final = 64 * 1024  # characters of a secret
# Of a secret that isn't used: as valid as a key in Base64 and as one of 32 bytes.
_UNUSED: Final = "A" * 64
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,254}", re.ASCII)
_CREDENTIAL: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,255}", re.ASCII)
_FORMS: Final = (
    '{ env = "NAME" }, { file = "PATH" }, { systemd_credential = "NAME" } or'
    ' { command = ["PROGRAM", ...] }'
)


@attrs.frozen
class Secret:
    """A text that no log, error or `repr` ever shows."""

    text: str = attrs.field(repr=False)


def _doubts(path: Path, found: os.stat_result) -> Iterator[str]:
    """The reasons why others than this process and root may know or change the secret."""
    own = found.st_uid == os.geteuid()
    # A group through which root has given us the secret may read it.
    if own and found.st_mode & stat.S_IRGRP:
        yield f"{path}: its group can read this secret; run chmod 600 on it"
    if not own and found.st_uid != 0:
        yield f"{path} belongs to another user ({found.st_uid}), who can change this secret"


@attrs.define
class SecretSource:
    """
    Reads the secrets of one configuration; paths are relative to its folder. A command that uses
    those of some tables alone needs no others: `used` are their names, such as `access`, or
    `namespaces.east` of a single namespace; None: all.
    """

    environ: Mapping[str, str] = attrs.field(repr=False)
    folder: Path
    used: Collection[str] | None = None
    warnings: list[str] = attrs.field(factory=list)
    _reads: bool = True

    @contextmanager
    def within(self, table: str) -> Iterator[None]:
        """Secrets that are read in the context are of that table of the file."""
        before, names = self._reads, {table, table.partition(".")[0]}
        self._reads = self.used is None or not names.isdisjoint(self.used)
        try:
            yield
        finally:
            self._reads = before

    def read(self, value: object) -> Secret:
        """
        The secret that the reference names. The line ends at the end of its text don't count: files
        and commands have one, and so has a variable that was made of either. A command may block
        for its timeout.

        Raises:
            ValueError: the value isn't a reference, or the secret is missing, or in a file that
                every user of this machine can read; the text never contains a secret.
        """
        match value:
            case {} if not self._reads:
                return Secret(_UNUSED)
            case {"env": str(name), **rest} if not rest:
                return self._from_environment(name)
            case {"file": str(path), **rest} if not rest:
                return self._from_file(self.folder / path, private=True)
            case {"systemd_credential": str(name), **rest} if not rest:
                return self._from_credential(name)
            case {"command": list(arguments), **rest} if rest.keys() <= {"timeout"}:
                timeout = rest.get("timeout")
                return self._from_command(
                    arguments, _TIMEOUT if timeout is None else seconds(timeout)
                )
        raise ValueError(f"a secret must not be in this file: write {_FORMS}")

    def _from_environment(self, name: str) -> Secret:
        if not _VARIABLE.fullmatch(name):  # probably the secret itself: not shown
            raise ValueError("env: the name of an environment variable expected, not its value")
        text = self.environ.get(name, "").rstrip("\r\n")
        if not text:
            raise ValueError(f"set the environment variable {name}: it is empty or missing")
        return Secret(text)

    def _from_file(self, path: Path, *, private: bool) -> Secret:
        try:
            with path.open(encoding="utf-8-sig") as file:
                found = os.fstat(file.fileno())
                text = file.read(_LONGEST + 1)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: isn't UTF-8 text") from error
        if (why := why_exposed(path, found)) is not None:
            raise ValueError(why)
        if len(text) > _LONGEST:
            raise ValueError(f"{path}: a secret of up to {_LONGEST} characters expected")
        if not (text := text.rstrip("\r\n")):
            raise ValueError(f"{path}: a secret expected, but the file is empty")
        if private:
            self.warnings += _doubts(path, found)
        return Secret(text)

    def _from_credential(self, name: str) -> Secret:
        if not _CREDENTIAL.fullmatch(name):
            raise ValueError("systemd_credential: a name without slashes expected, not its value")
        folder = self.environ.get(CREDENTIALS, "")
        if not folder:
            raise ValueError(
                f"systemd_credential: {CREDENTIALS} isn't set; write LoadCredential={name}:PATH"
                " into the unit of systemd"
            )
        return self._from_file(Path(folder) / name, private=False)  # systemd guards the folder

    def _from_command(self, arguments: Sequence[object], timeout: float) -> Secret:
        words = [each for each in arguments if isinstance(each, str) and each]
        if not words or len(words) != len(arguments):
            raise ValueError("command: a list of texts expected, the first of which is a program")
        named = f"command {words[0]}"  # the other words may be secrets
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # The error's own text would name all words of the command, and its output.
            raise ValueError(f"{named}: no output within {timeout:g} s") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "can't be started"
            raise ValueError(f"{named}: {reason}") from None
        if done.returncode:
            raise ValueError(f"{named}: it failed with exit code {done.returncode}")
        try:
            text = done.stdout.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"{named}: its output isn't UTF-8 text") from None
        if not text or len(text) > _LONGEST:
            raise ValueError(f"{named}: a secret of up to {_LONGEST} characters expected")
        return Secret(text)


def shown_reference(value: object) -> object:
    """
    The reference in a form that may be shown: of a command only the program, since its other words
    may be secrets. Any other value isn't shown.
    """
    match value:
        case list():
            return [shown_reference(each) for each in value]
        case {"command": [str(program), *words], **rest}:
            shown = [program, f"({len(words)} more)"] if words else [program]
            return {"command": shown, **rest}
        case {"env": str()} | {"file": str()} | {"systemd_credential": str()}:
            return value if isinstance(value, dict) and len(value) == 1 else NOT_SHOWN
    return NOT_SHOWN
