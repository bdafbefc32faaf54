"""
Conditions for a start of `serve`, checked by `check`: certificates, ports, files, identity
providers.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from gateway.app.endpoints import tls_of
from gateway.app.failure import Failure
from gateway.app.operations.findings import Findings, Grade
from gateway.config.endpoints import AMQP, SERVE, Endpoint, moved
from gateway.config.options import Config
from gateway.extensions.listing import parts
from gateway.frontends.issuers import make_reader
from gateway.net import unix
from gateway.net.listeners import CannotListen, open_listener
from gateway.net.openid import ProviderFailed

_ANSWER_SECONDS: Final = 10.0  # as long as other commands wait for an answer
_AMQP_HEADER: Final = b"AMQP\0\1\0\0"
# Any client may ask so on each HTTP port: it needs no credentials, whose lack would be an alarm.
_REQUEST: Final = b"OPTIONS /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


async def check_endpoints(
    config: Config, findings: Findings, *, port_offset: int, is_served: bool
) -> None:
    """
    Check that each endpoint can be served. `is_served`: a store of this configuration is open in
    another process, so that a port in use is that gateway's.
    """
    if not config.endpoints:
        text = "no endpoint is configured, and `serve` needs one: add [[endpoints]] for clients"
        findings.add("endpoints", Grade.BAD, text)
    elif not config.endpoints_of(SERVE):
        others = " and ".join(sorted({f"`pairgate {each.process}`" for each in config.endpoints}))
        text = f"this configuration is for {others}: `serve` needs [[endpoints]] for clients"
        findings.add("endpoints", Grade.NOTE, text)
    for index, endpoint in enumerate(config.endpoints):
        subject = f"endpoints[{index}]"
        try:
            tls_of(config, index)
        except Failure as failure:
            findings.add(subject, Grade.BAD, str(failure))
        bind = moved(endpoint.bind, port_offset)
        grade, text = await _bound(config, endpoint, bind, is_served)
        findings.add(f"{subject}.bind", grade, text)


async def _bound(
    config: Config, endpoint: Endpoint, bind: str, is_served: bool
) -> tuple[Grade, str]:
    if (path := unix.path_of(bind)) is not None:
        return _socket_file(path)
    try:
        listener = await open_listener(bind, on_crash=lambda peer, error: None)
    except CannotListen as error:
        is_taken = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
        if is_taken and (is_served or await _is_gateway(config, endpoint, bind)):
            return Grade.GOOD, f"{bind} is served by a running {_kind_of(endpoint)}"
        return Grade.BAD, str(error)
    await listener.aclose()
    return Grade.GOOD, f"{bind} is free"


def _kind_of(endpoint: Endpoint) -> str:
    """The process that opens the endpoint, for people."""
    return "gateway" if endpoint.process == SERVE else f"`pairgate {endpoint.process}`"


def _socket_file(path: Path) -> tuple[Grade, str]:
    if path.is_socket():
        if unix.is_answered(path):
            return Grade.GOOD, f"{path} is served by a running process"
        return Grade.GOOD, f"{path} is of a process that has ended, and will be replaced"
    if path.exists():
        return Grade.BAD, f"{path}: there is a file that is no socket"
    why = _why_not_there(path)
    return (Grade.GOOD, f"{path} is free") if why is None else (Grade.BAD, f"{path}: {why}")


async def _is_gateway(config: Config, endpoint: Endpoint, bind: str) -> bool:
    """True if the process that listens there answers as this endpoint would."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    is_amqp = endpoint.protocol == AMQP and endpoint.tls is None
    answer = b""
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            async with await trio.open_tcp_stream(_ANYWHERE.get(host, host), int(port)) as stream:
                await stream.send_all(_AMQP_HEADER if is_amqp else _REQUEST)
                while (data := await stream.receive_some()) and len(answer) < 1024:
                    answer += data
                    if is_amqp:
                        break
        except (OSError, trio.BrokenResourceError):
            return False
    name = config.limits.http.server_name
    return answer.startswith(b"AMQP") if is_amqp else f"\r\nServer: {name}\r\n".encode() in answer


async def check_issuers(config: Config, findings: Findings) -> None:
    """Check that the keys of each identity provider can be read."""
    for options in config.issuers:
        subject = f"issuer {options.issuer.name}"
        try:
            provided = await make_reader(options)()
        except ProviderFailed as error:
            findings.add(subject, Grade.BAD, f"its keys can't be read: {error}")
            continue
        keys = provided.keys
        findings.add(subject, Grade.GOOD, f"{len(keys.keys)} of its keys can verify tokens")
        known = {name for key in keys.keys for name in key.by_algorithm}
        if not known & set(options.issuer.algorithms):
            text = (
                f"none of its keys is for one of the algorithms"
                f" {', '.join(options.issuer.algorithms)}, but for {', '.join(sorted(known))}"
            )
            findings.add(subject, Grade.BAD, text)


def check_files(config: Config, findings: Findings) -> None:
    """Check that `serve` can write its files where they are configured."""
    for key, path in _files_of(config):
        why = _why_not_there(path)
        if why is not None:
            findings.add(key, Grade.BAD, f"{path}: {why}")


def _files_of(config: Config) -> Iterator[tuple[str, Path]]:
    for name, namespace in config.namespaces.items():
        scheme, _, path = namespace.url.partition(":")
        if scheme == "embedded":
            yield f"namespaces.{name}.url", Path(path)
    if config.audit is not None:
        yield "audit.file", config.audit.file
    if config.pairing is not None:
        yield "pairing.state", config.pairing.state
        if config.pairing.spool is not None:
            yield "pairing.spool", config.pairing.spool
    for files in parts("files"):
        yield from files(config)


def _why_not_there(path: Path) -> str | None:
    if path.is_dir():
        return "is a folder, and a file is expected"
    nearest = next(folder for folder in path.parents if folder.exists())
    if not nearest.is_dir():
        return f"{nearest} is a file, and a folder is expected"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} can't be written"
    return None
