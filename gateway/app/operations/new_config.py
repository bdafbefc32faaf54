"""`pairgate config new`: a configuration and its keys, made from a few answers."""

import base64
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import ADMIN, ONE_PORT, STORAGE_QUEUE
from gateway.config.errors import ConfigError
from gateway.config.file import parse

KEYS: Final = "keys"  # the folder of the secrets, beside the configuration
POLICY: Final = "application"  # the access policy that is made
ACCOUNT: Final = "pairgate"  # the storage account that is made
_KEY_BYTES: Final = 32
_PORTS: Final = {ONE_PORT: 5672, "service-bus-http": 5300, STORAGE_QUEUE: 10001, ADMIN: 9640}


@attrs.frozen(kw_only=True)
class NewKind:
    """A kind of namespace, and the questions about it."""

    url: str  # what is asked for; empty: nothing, the secret has it
    default: str = ""  # the URL, or where `url` is empty, its fixed value
    secret: str = ""  # the option of the secret; empty: there is none
    is_local: bool = False


KINDS: Final[Mapping[str, NewKind]] = {
    "embedded": NewKind(url="", default="embedded:var/{name}.db", is_local=True),
    "service-bus": NewKind(url="", default="servicebus:", secret="connection_string"),
    "rabbitmq": NewKind(url="rabbitmqs://USER@HOST/VHOST", secret="password"),
    "storage-queue": NewKind(url="", default="storage-queue:", secret="connection_string"),
    "pairgate": NewKind(url="servicebus+https://KEYNAME@HOST:PORT", secret="key"),
}


@attrs.frozen(kw_only=True)
class NewNamespace:
    """The answers about one namespace."""

    kind: str
    url: str
    secret: str = attrs.field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        return KINDS[self.kind].is_local

    def table(self, name: str, queues: Sequence[str] = ()) -> str:
        """Return the namespace's table in the file."""
        lines = [f"[namespaces.{name}]", f"url = {json.dumps(self.url)}"]
        if option := KINDS[self.kind].secret:
            lines.append(f"{option} = {{ file = {json.dumps(f'{KEYS}/{name}')} }}")
        if queues:
            lines.append(f"queues = {json.dumps(list(queues))}")
        return "\n".join(lines) + "\n"


@attrs.frozen(kw_only=True)
class Answers:
    """All answers."""

    primary: NewNamespace
    secondary: NewNamespace | None  # None: no pair
    queues: tuple[str, ...]
    label: str = ""  # empty: derived from the primary
    enable_syphon: bool = True
    host: str = "127.0.0.1"
    storage: bool = False  # True: clients of Storage Queue are served, too


def problems_of_namespace(namespace: NewNamespace) -> list[str]:
    """The reasons why the answers make no valid namespace; empty: they do."""
    text = namespace.table("new").replace(f'file = "{KEYS}/new"', 'env = "SECRET"')
    environ = {"SECRET": namespace.secret}
    try:
        parse(text, source="", folder=Path(), environ=environ)
    except ConfigError as error:
        return [problem.removeprefix(": namespaces.new.") for problem in error.problems]
    return []


def needs_label(answers: Answers) -> bool:
    """True if the label can't be derived from the primary."""
    text, secrets_of = config_text(attrs.evolve(answers, label="")), secret_texts(answers)
    for name in secrets_of:
        text = text.replace(f'file = "{KEYS}/{name}"', f'env = "{name}"')
    try:
        parse(text, source="", folder=Path(), environ=secrets_of)
    except ConfigError as error:
        return any("pairing.label" in problem for problem in error.problems)
    return False


def config_text(answers: Answers) -> str:
    """The text of the configuration's file."""
    parts = [
        "# Every other option has its default: `pairgate config --default`.\n"
        f"# The keys are files in the folder {KEYS}, which only this user can read.\n",
        answers.primary.table("primary", answers.queues),
    ]
    if answers.secondary is not None:
        parts += [answers.secondary.table("secondary"), _pairing(answers)]
    for protocol, port in _PORTS.items():
        if protocol != STORAGE_QUEUE or answers.storage:
            bind = json.dumps(f"{answers.host}:{port}")
            parts.append(f'[[endpoints]]\nprotocol = "{protocol}"\nbind = {bind}\n')
    rights = '["Manage"]                # Send and Listen, too; narrow it when it works'
    parts.append(
        "[[access]]                         # clients use this name and its key\n"
        f'name = "{POLICY}"\nkey = {{ file = "{KEYS}/{POLICY}" }}\nrights = {rights}\n'
    )
    if answers.storage:
        parts.append(
            f'[[accounts]]                       # of Storage Queue\nname = "{ACCOUNT}"\n'
            f'key = {{ file = "{KEYS}/account" }}\n'
        )
    return "\n".join(parts)


def _pairing(answers: Answers) -> str:
    lines = ["[pairing]", 'primary = "primary"', 'secondary = "secondary"']
    if answers.label:
        lines.append(f"label = {json.dumps(answers.label)}")
    lines.append(f"enable_syphon = {json.dumps(answers.enable_syphon)}")
    key = f'{{ file = "{KEYS}/envelope" }}'
    lines.append(f'envelope_keys = [{{ id = "1", key = {key} }}]')
    return "\n".join(lines) + "\n"


def secret_texts(answers: Answers) -> dict[str, str]:
    """The content of each file of `KEYS`, by its name. Each call makes new keys."""
    found = {POLICY: new_key()}
    if answers.storage:
        found["account"] = new_key()
    if answers.primary.secret:
        found["primary"] = answers.primary.secret
    if answers.secondary is not None:
        found["envelope"] = new_key()
        if answers.secondary.secret:
            found["secondary"] = answers.secondary.secret
    return found


def new_key() -> str:
    """A key of 256 bits, in Base64."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def write_config(path: Path, answers: Answers) -> list[Path]:
    """
    Write the configuration and its keys, which only this user can read; return the files. If a file
    can't be written, or the configuration is invalid, no file is left.

    Raises:
        Failure: a file exists already, and stays; or it can't be written.
        ConfigError: the configuration is invalid.
    """
    texts = {path.parent / KEYS / name: text for name, text in secret_texts(answers).items()}
    for file in (path, *texts):
        refuse_existing(file)
    text, made = config_text(answers), list[Path]()
    try:
        (path.parent / KEYS).mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, secret in texts.items():
            _write(file, f"{secret}\n", made)
        parse(text, source=str(path), folder=path.resolve().parent, environ={})
        _write(path, text, made)
    except OSError as error:
        _remove(made)
        raise Failure(f"{error.filename or path}: {error.strerror}") from error
    except BaseException:
        _remove(made)
        raise
    return made


def _remove(made: Sequence[Path]) -> None:
    for file in made:
        with suppress(OSError):
            file.unlink()


def refuse_existing(path: Path) -> None:
    """Check that no such file exists. Raises: Failure: a file exists."""
    if path.exists() or path.is_symlink():
        text = f"{path}: already there; remove it, or name another file"
        raise Failure(text, ExitCode.WRONG)


def _write(path: Path, text: str, made: list[Path]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    made.append(path)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
