"""
The text of the configuration: its file, or the embedded default; and its endpoints, read without
the rest of it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.config.endpoints import SERVE, Endpoint
from gateway.config.errors import ConfigError
from gateway.config.given import with_binds
from gateway.net import unix
from gateway.net.tls import TlsOptions

FILE_NAME: Final = "pairgate.toml"
# The configuration of `serve` without a file; conf/pairgate.toml says the same, with every option.
DEFAULT: Final = """
[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:5672"

[namespaces.east]
url = "embedded:var/east.db"

[namespaces.west]
url = "embedded:var/west.db"

[pairing]
primary = "east"
secondary = "west"
label = "east"
enable_syphon = true

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:5300"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:10001"

[[endpoints]]
protocol = "rabbitmq"
bind = "127.0.0.1:5673"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:9640"
"""


@attrs.frozen
class Source:
    """The text of a configuration, its name for people, and the folder of its relative paths."""

    text: str = attrs.field(repr=False)
    name: str
    folder: Path


def find_source(path: Path | None, here: Path) -> Source:
    """
    The given file; without it `pairgate.toml` in the folder `here`, else the embedded default.

    Raises:
        ConfigError: there is no such file, or it isn't UTF-8 text.
    """
    if path is None and (here / FILE_NAME).exists():
        path = here / FILE_NAME
    if path is None:
        return Source(DEFAULT, "the embedded default", here)
    return Source(_text_of(path), str(path), path.resolve().parent)


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # editors on Windows write a byte order mark
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: isn't UTF-8 text"]) from error


def tables_of(source: Source) -> dict[str, Any]:
    """
    The tables of the text.

    Raises:
        ConfigError: the text isn't TOML; the line begins with the source's name.
    """
    try:
        return tomllib.loads(source.text)
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise ConfigError([f"{source.name}: {error}"]) from error
    except RecursionError as error:
        raise ConfigError([f"{source.name}: lists or tables are nested too deeply"]) from error


def endpoints_alone(source: Source, environ: Mapping[str, str]) -> Sequence[Endpoint] | None:
    """
    The endpoints as far as a local client needs them, although the rest of the configuration may be
    invalid; None if they are invalid themselves.

    Raises:
        ConfigError: as `tables_of`, or an address of the environment is invalid.
    """
    found = with_binds(tables_of(source), (), environ).get("endpoints", [])
    try:
        return [_endpoint(entry, source.folder) for entry in found]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _endpoint(entry: Mapping[str, Any], folder: Path) -> Endpoint:
    bind, tls = entry["bind"], entry.get("tls")
    if (path := unix.path_of(bind)) is not None:
        bind = f"{unix.PREFIX}{folder / path}"
    return Endpoint(
        protocol=entry["protocol"],
        bind=bind,
        process=entry.get("process", SERVE),
        tls=None if tls is None else _tls(tls, folder),
    )


def _tls(table: Mapping[str, Any], folder: Path) -> TlsOptions:
    return TlsOptions(
        certificate=folder / table["certificate"],
        key=folder / table["key"],
        client_ca=folder / table["client_ca"] if "client_ca" in table else None,
        required=table.get("required"),
    )
