"""Listening sockets that this process got from another one: its predecessor, or systemd."""

import os
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Final

import attrs

from gateway.app.failure import ExitCode, Failure
from gateway.config.endpoints import PROTOCOLS, SERVE, moved
from gateway.config.options import Config
from gateway.net import unix
from gateway.net.descriptors import close_all
from gateway.net.listeners import BoundSockets, inherited_sockets, split_address, written

FIRST_OF_SYSTEMD: Final = 3  # the number of the first descriptor; sd_listen_fds(3)
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@attrs.define(eq=False)
class GivenSockets:
    """
    The sockets of each address, in the order of the endpoints that have it: several endpoints may
    ask for "any port".
    """

    _by_bind: Mapping[str, list[list[int]]] = attrs.field(factory=dict)
    _with_files: bool = True  # True: this process must remove the files of Unix sockets

    def acquire(self, bind: str) -> BoundSockets | None:
        """The sockets of the next endpoint with that address, now the caller's; None: none."""
        left = self._by_bind.get(bind)
        if not left:
            return None
        file = None
        if self._with_files and (path := unix.path_of(bind)) is not None:
            with suppress(OSError):  # the file was removed
                file = unix.file_of(path)
        return BoundSockets(inherited_sockets(left.pop(0)), file)

    def close(self) -> None:
        """Close the sockets that no endpoint has taken."""
        for left in self._by_bind.values():
            for descriptors in left:
                close_all(descriptors)
            left.clear()


def by_bind(entries: Sequence[tuple[str, list[int]]], *, with_files: bool = True) -> GivenSockets:
    """
    The sockets of these endpoints, each an address and its descriptors. `with_files`: the files of
    Unix sockets are removed at their end.
    """
    found: dict[str, list[list[int]]] = {}
    for bind, descriptors in entries:
        found.setdefault(bind, []).append(descriptors)
    return GivenSockets(found, with_files=with_files)


def from_systemd(
    config: Config,
    environ: MutableMapping[str, str],
    *,
    port_offset: int = 0,
    first: int = FIRST_OF_SYSTEMD,
) -> GivenSockets | None:
    """
    The sockets of a systemd unit, by the addresses of their endpoints; None: no systemd unit has
    started the process. `first` is the number of the first descriptor.

    The variables are removed from `environ`, so that no child takes them for its own.

    Raises:
        Failure: a socket isn't a listening one, or no endpoint has its address or its protocol.
    """
    pid, count, names = (environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    endpoints = config.endpoints_of(SERVE)
    binds = {number: moved(each.bind, port_offset) for number, each in endpoints.items()}
    addresses = {number: _addresses(bind) for number, bind in binds.items()}
    found: dict[int, list[int]] = {number: [] for number in binds}
    for descriptor, name in _named(first, int(count), names):
        address = _listening(descriptor, name)
        number = next((each for each, known in addresses.items() if address in known), None)
        if number is None:
            raise Failure(
                f"{_described(descriptor, name)} listens on {address}, and no endpoint has this"
                f" address: configured are {', '.join(binds.values())}",
                ExitCode.WRONG,
            )
        protocol = endpoints[number].protocol
        if name in PROTOCOLS and name != protocol:
            raise Failure(
                f"{_described(descriptor, name)} is named after another protocol than that of"
                f" endpoints[{number}], which is {protocol}",
                ExitCode.WRONG,
            )
        found[number].append(descriptor)
    entries = [(binds[number], given) for number, given in found.items() if given]
    return by_bind(entries, with_files=False)


def _named(first: int, count: int, names: str) -> Iterator[tuple[int, str]]:
    named = names.split(":")
    for index in range(count):
        yield first + index, named[index] if index < len(named) else ""


def _described(number: int, name: str) -> str:
    return f"LISTEN_FDS: the socket {name or 'without a name'} (descriptor {number})"


def _listening(number: int, name: str) -> str:
    """
    The address at which that descriptor listens.

    Raises:
        Failure: the descriptor isn't a listening socket of streams.
    """
    try:
        os.set_inheritable(number, False)
        found = socket.socket(fileno=number)
    except OSError as error:
        text = f"{_described(number, name)} can't be used: {error.strerror}"
        raise Failure(text, ExitCode.WRONG) from error
    try:
        is_stream = found.type == socket.SOCK_STREAM
        if not is_stream or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            text = f"{_described(number, name)} isn't a listening socket: write ListenStream="
            raise Failure(text, ExitCode.WRONG)
        return written(found.getsockname())
    finally:
        found.detach()


def _addresses(bind: str) -> set[str]:
    """The addresses that a socket for that endpoint may have; a name may stand for several."""
    if unix.path_of(bind) is not None:
        return {bind}
    host, port = split_address(bind)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return {bind}
    return {written(address) for *_, address in resolved}
