"""`pairgate config new`: a configuration and its keys, made from a few answers."""

import base64
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import ADMIN, ONE_PORT, STORAGE_QUEUE
from gateway.config.errors import ConfigError
from gateway.config.file import parse
from gateway.config.options import Config, Namespace
from gateway.config.places import label_of, location_of

KEYS: Final = "keys"  # the folder of the secrets, beside the configuration
POLICY: Final = "application"  # the access policy that is made
ACCOUNT: Final = "pairgate"  # the storage account that is made
REST: Final = "service-bus-http"
_KEY_BYTES: Final = 32
PORTS: Final[Mapping[str, int]] = MappingProxyType(
    {ONE_PORT: 5672, REST: 5300, STORAGE_QUEUE: 10001, ADMIN: 9640}
)
_DRAFT: Final = ".answers"  # the suffix of the file that keeps the answers of an interview
_NAME: Final = re.compile(r"[^\w-]+", re.ASCII)


@attrs.frozen(kw_only=True)
class NewKind:
    """A kind of namespace, and the questions about it."""

    url: str  # what is asked for; empty: nothing, the secret has it
    default: str = ""  # the URL, or where `url` is empty, its fixed value
    secret: str = ""  # the option of the secret; empty: there is none
    is_local: bool = False
    has_management: bool = False  # an API beside the protocol, at an address of its own


KINDS: Final[Mapping[str, NewKind]] = {
    "embedded": NewKind(url="", default="embedded:var/{name}.db", is_local=True),
    "service-bus": NewKind(url="", default="servicebus:", secret="connection_string"),
    "rabbitmq": NewKind(url="rabbitmqs://USER@HOST/VHOST", secret="password", has_management=True),
    "storage-queue": NewKind(url="", default="storage-queue:", secret="connection_string"),
    "pairgate": NewKind(url="servicebus+https://KEYNAME@HOST:PORT", secret="key"),
}


@attrs.frozen(kw_only=True)
class NewNamespace:
    """The answers about one namespace."""

    kind: str
    url: str
    secret: str = attrs.field(default="", repr=False)
    management: str = ""  # the URL of the API; empty: there is none
    name: str = "new"  # in the file

    @property
    def is_local(self) -> bool:
        return KINDS[self.kind].is_local

    def table(self, queues: Sequence[str] = ()) -> str:
        """Return the namespace's table in the file."""
        lines = [f"[namespaces.{self.name}]", f"url = {json.dumps(self.url)}"]
        if option := KINDS[self.kind].secret:
            lines.append(f"{option} = {{ file = {json.dumps(f'{KEYS}/{self.name}')} }}")
        if self.management:
            lines.append(f"management = {json.dumps(self.management)}")
        if queues:
            lines.append(f"queues = {json.dumps(list(queues))}")
        return "\n".join(lines) + "\n"


@attrs.frozen(kw_only=True)
class Answers:
    """All answers."""

    primary: NewNamespace
    secondary: NewNamespace | None  # None: no pair
    queues: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()  # those that keep their order through an outage
    label: str = ""  # empty: derived from the primary
    enable_syphon: bool = True
    host: str = "127.0.0.1"
    ports: Mapping[str, int] = PORTS  # by protocol
    storage: bool = False  # True: clients of Storage Queue are served, too

    @property
    def protocols(self) -> list[str]:
        """The protocols that are served."""
        return [each for each in PORTS if each != STORAGE_QUEUE or self.storage]


def read_namespace(namespace: NewNamespace) -> Namespace:
    """
    The namespace as a configuration has it. Raises: ConfigError: the answers make no valid one;
    each problem begins with `namespaces.NAME.`.
    """
    text = namespace.table().replace(f'file = "{KEYS}/{namespace.name}"', 'env = "SECRET"')
    read = parse(text, source="", folder=Path(), environ={"SECRET": namespace.secret})
    return read.config.namespaces[namespace.name]


def named(namespace: NewNamespace, taken: str = "") -> NewNamespace:
    """The namespace, valid as it is, named by what it is: its host, else its kind."""
    host = label_of(location_of(read_namespace(namespace)))
    own = "store" if namespace.is_local else namespace.kind
    name = _NAME.sub("-", host or own)
    if name == taken:
        name = f"{name}-secondary"
    return attrs.evolve(namespace, name=name, url=namespace.url.replace("{name}", name))


def read_config(answers: Answers) -> Config:
    """The configuration of the answers. Raises: ConfigError: they make no valid one."""
    text, secrets_of = config_text(answers), secret_texts(answers)
    for name in secrets_of:
        text = text.replace(f'file = "{KEYS}/{name}"', f'env = "{name}"')
    return parse(text, source="", folder=Path(), environ=secrets_of).config


def problem_of(answers: Answers, *paths: str) -> str:
    """The problem of the options whose paths begin so; empty: there is none."""
    try:
        read_config(answers)
    except ConfigError as error:
        problems = [each.removeprefix(": ") for each in error.problems]
        return "; ".join(each for each in problems if each.startswith(paths))
    return ""


def config_text(answers: Answers) -> str:
    """The text of the configuration's file."""
    parts = [
        "# Every other option has its default: `pairgate config --default`.\n"
        f"# The keys are files in the folder {KEYS}, which only this user can read.\n",
        answers.primary.table(answers.queues),
    ]
    if answers.secondary is not None:
        parts += [answers.secondary.table(), _pairing(answers, answers.secondary)]
    for protocol in answers.protocols:
        bind = json.dumps(f"{answers.host}:{answers.ports[protocol]}")
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


def _pairing(answers: Answers, secondary: NewNamespace) -> str:
    lines = ["[pairing]", f'primary = "{answers.primary.name}"', f'secondary = "{secondary.name}"']
    if answers.label:
        lines.append(f"label = {json.dumps(answers.label)}")
    if answers.ordered:
        lines.append(f"ordered = {json.dumps(list(answers.ordered))}")
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
        found[answers.primary.name] = answers.primary.secret
    if answers.secondary is not None:
        found["envelope"] = new_key()
        if answers.secondary.secret:
            found[answers.secondary.name] = answers.secondary.secret
    return found


def new_key() -> str:
    """A key of 256 bits, in Base64."""
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def write_config(path: Path, answers: Answers, further: Mapping[str, str]) -> list[Path]:
    """
    Write the configuration, its keys, and the further texts by their names, which only this user
    can read; return the files. If a file can't be written, or the configuration is invalid, no file
    is left.

    Raises:
        Failure: a file exists already, and stays; or it can't be written.
        ConfigError: the configuration is invalid.
    """
    texts = {path.parent / KEYS / name: text for name, text in secret_texts(answers).items()}
    texts |= {path.parent / name: text for name, text in further.items()}
    for file in (path, *texts):
        refuse_existing(file)
    text, made = config_text(answers), list[Path]()
    is_there = (path.parent / KEYS).exists()
    try:
        (path.parent / KEYS).mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, secret in texts.items():
            _write(file, f"{secret}\n", made)
        parse(text, source=str(path), folder=path.resolve().parent, environ={})
        _write(path, text, made)
    except OSError as error:
        _remove(made, None if is_there else path.parent / KEYS)
        raise Failure(f"{error.filename or path}: {error.strerror}") from error
    except BaseException:
        _remove(made, None if is_there else path.parent / KEYS)
        raise
    return made


def _remove(made: Sequence[Path], folder: Path | None) -> None:
    with suppress(OSError):
        for file in made:
            file.unlink()
        if folder is not None:
            folder.rmdir()


def draft_of(path: Path) -> Path:
    """The file that keeps the answers for this configuration until it is written."""
    return path.with_name(f"{path.name}{_DRAFT}")


def read_draft(path: Path) -> dict[str, str]:
    """
    The answers that an interview about this configuration has left; none where it left none.

    Raises:
        Failure: they can't be read.
    """
    draft = draft_of(path)
    try:
        found = json.loads(draft.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise Failure(f"{draft}: {error}; remove it to begin again", ExitCode.WRONG) from error
    return {str(name): str(answer) for name, answer in dict(found).items()}


def keep_draft(path: Path, answers: Mapping[str, str]) -> Path:
    """
    Write the answers, secrets too, where only this user can read them. Raises: Failure: they can't
    be written.
    """
    draft, made = draft_of(path), list[Path]()
    try:
        draft.unlink(missing_ok=True)
        _write(draft, f"{json.dumps(dict(answers), indent=1)}\n", made)
    except OSError as error:
        raise Failure(f"{error.filename or draft}: {error.strerror}") from error
    return draft


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
