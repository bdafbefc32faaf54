"""Listening ports: limits before accept, TLS, and the only place that contains crashes."""

import errno
import ipaddress
import re
import select
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import attrs
import trio

from gateway.net import unix
from gateway.net.clients import Clients
from gateway.net.direct import DirectStream, socket_of
from gateway.net.tls_handshake import accept_tls
from gateway.net.visits import Visits

CLOSE_SECONDS = 2.0
NO_ROOM_PAUSE = 1.0  # seconds between attempts to accept, while there are too many open files
# The process, or the system, can't have another socket now.
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_LISTENER = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
OTHERS_PAUSE = 0.05  # seconds in which another process at the same socket can accept a client
AT_ONCE = 64  # clients that are accepted in one turn of the scheduler
_PORT = re.compile(r"[0-9]{1,9}")

ConnectionHandler = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves one connection to its end. The stream is closed for it afterwards."""

OnEnd = Callable[[str, BaseException], None]
"""
Called with the client's `host:port` (empty if the client left before that was known), and the
error.
"""


class CannotListen(OSError):
    """The process can't listen on the address; the text names the address and the remedy."""


@attrs.frozen(kw_only=True)
class PortOptions:
    """Limits of one port."""

    max_connections: int = attrs.field(
        default=1000, validator=[attrs.validators.ge(1), attrs.validators.le(100_000)]
    )
    # 0: no limit. All clients on this machine count as one peer, as do all clients behind one NAT.
    max_connections_per_peer: int = attrs.field(default=800, validator=attrs.validators.ge(0))
    # Seconds that a connection without any authorization may wait for its client.
    first_timeout: float = attrs.field(default=20.0, validator=attrs.validators.gt(0))
    handshake_timeout: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    backlog: int = attrs.field(
        default=1024, validator=[attrs.validators.ge(1), attrs.validators.le(65535)]
    )


def is_lack(error: BaseException) -> TypeGuard[OSError]:
    """True if a client must wait because the process, or the system, has too many open files."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _ignore(peer: str, error: BaseException) -> None:
    """Ignore the end of a lost connection."""


@attrs.frozen(eq=False)
class BoundSockets:
    """Listening sockets that another process has bound, and the file to remove at their end."""

    sockets: Sequence[trio.SocketListener]
    file: unix.SocketFile | None = None


async def open_listener(
    address: str,
    *,
    on_crash: OnEnd,
    on_lost: OnEnd = _ignore,
    tls: ssl.SSLContext | None = None,
    options: PortOptions | None = None,
    mode: int = unix.MODE,
) -> "Listener":
    """
    Bind `host:port`, `[ipv6]:port` or `unix:PATH`; from then on clients are queued by the kernel.

    Port 0 chooses a free port. The file of a Unix socket has that `mode`, and is removed at the
    end. `on_crash` is called with each exception from a connection's handler that is a bug,
    `on_lost` with each reset, failed TLS handshake and refused surplus connection, and each second
    with the error by which a client must wait (`is_lack`).

    Raises:
        CannotListen: the address is in use, not of this machine, not allowed, or malformed.
    """
    options = options or PortOptions()
    path = unix.path_of(address)
    if path is not None:
        own, file = _bind_file(path, mode, options.backlog)
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(own))]
        return Listener(
            listeners, on_crash=on_crash, on_lost=on_lost, tls=tls, options=options, file=file
        )
    host, port = split_address(address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=options.backlog)
    except OSError as error:
        raise CannotListen(
            f"can't listen on {address} ({error.strerror or error}): "
            "end the process that uses it, choose another port, or move all ports with"
            " --port-offset"
        ) from error
    if port == 0:
        # A name may have several addresses, each of which got another free port.
        for surplus in listeners[1:]:
            await surplus.aclose()
        del listeners[1:]
    return Listener(listeners, on_crash=on_crash, on_lost=on_lost, tls=tls, options=options)


def _bind_file(path: Path, mode: int, backlog: int) -> tuple[socket.socket, unix.SocketFile]:
    if (why := unix.why_no_path(path)) is not None:
        raise CannotListen(why)
    try:
        return unix.bind(path, mode, backlog)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        cure = "end the process that uses it, or choose another path" if taken else "check the path"
        text = f"can't listen on {unix.PREFIX}{path} ({error.strerror or error}): {cure}"
        raise CannotListen(text) from error


def inherited_sockets(descriptors: Sequence[int]) -> list[trio.SocketListener]:
    """The listening sockets with these descriptors, which the process has from another one."""
    return [
        trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=each)))
        for each in descriptors
    ]


def split_address(address: str) -> tuple[str, int]:
    """
    The host and the port of `host:port` or `[ipv6]:port`.

    Raises:
        CannotListen: the address is malformed.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
        _refuse_address(address)
    if ":" in host and not bracketed:
        _refuse_address(address)
    return host.strip("[]"), int(port)


def _refuse_address(address: str) -> NoReturn:
    raise CannotListen(
        f"{address!r} is not an address to listen on: write host:port, such as 127.0.0.1:5672, "
        "[::1]:5672, or 0.0.0.0:5672 for all of this machine"
    )


class Listener:
    """A port, with the limits, TLS and error handling of its connections."""

    def __init__(
        self,
        sockets: Sequence[trio.SocketListener],
        *,
        on_crash: OnEnd,
        on_lost: OnEnd = _ignore,
        tls: ssl.SSLContext | None = None,
        options: PortOptions | None = None,
        file: unix.SocketFile | None = None,
    ) -> None:
        """`file` is the file of a Unix socket, which is removed at the end."""
        self._is_shared = False
        self._sockets = sockets
        self._file = file
        self._owns_file = True
        self._on_crash = on_crash
        self._on_lost = on_lost
        self._tls = tls
        self._options = options or PortOptions()
        self._slots = trio.Semaphore(self._options.max_connections)
        self._peers: Counter[str] = Counter()
        self._visits = Visits(self._options.first_timeout)

    @property
    def address(self) -> str:
        """The address as it was bound, with the port that the kernel chose for 0."""
        return written(self._sockets[0].socket.getsockname())

    @property
    def descriptors(self) -> list[int]:
        """The sockets' file descriptors, with which another process can accept, too."""
        return [each.socket.fileno() for each in self._sockets]

    @property
    def port(self) -> int:
        port: int = self._sockets[0].socket.getsockname()[1]
        return port

    def share_sockets(self) -> None:
        """Leave waiting clients to the other processes that accept at the same sockets."""
        self._is_shared = True

    def limit_clients(self, clients: Clients) -> None:
        """Count connections for the limits of their clients from now on."""
        self._visits.clients = clients

    async def serve(
        self,
        handler: ConnectionHandler,
        *,
        connections: trio.Nursery,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """
        Run `handler` for each connection, as a task of `connections`, until cancelled.

        A cancellation closes the port and nothing else: connections live as long as their nursery.
        Clients in the kernel's queue are reset.
        """
        task_status.started()  # the kernel has been queueing clients since the socket was bound
        try:
            await trio.serve_listeners(
                partial(self._contained, handler),
                [
                    _SlottedListener(
                        socket, self._slots, self._visits, self._on_lost, self._is_shared
                    )
                    for socket in self._sockets
                ],
                handler_nursery=connections,
            )
        finally:
            self._remove_file()

    async def aclose(self) -> None:
        """Free the port of a listener that never serves."""
        for each in self._sockets:
            await each.aclose()
        self._remove_file()

    def borrow_file(self) -> None:
        """
        Leave the file of a Unix socket at the end, as another process's, unless `own_file` is
        called.
        """
        self._owns_file = False

    def own_file(self) -> None:
        """Note that the socket's file belongs to this process from now on."""
        self._owns_file = True

    def leave_file(self) -> None:
        """Leave the file of a Unix socket to another process, which accepts there."""
        self._file = None

    def _remove_file(self) -> None:
        if self._file is not None and self._owns_file:
            self._file.remove()

    async def _contained(self, handler: ConnectionHandler, stream: trio.SocketStream) -> None:
        """The only place where exceptions of connections end."""
        peer = ""
        try:
            peer, user = _peer_of(stream)
            await self._admitted(handler, stream, peer, user)
        except* (
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
            ConnectionError,
        ) as group:
            self._on_lost(peer, group)
        except* Exception as group:
            self._on_crash(peer, group)
        finally:
            self._slots.release()

    async def _admitted(
        self, handler: ConnectionHandler, stream: trio.SocketStream, peer: str, user: int | None
    ) -> None:
        owner = _owner_of(peer)
        limit = self._options.max_connections_per_peer
        full = limit and self._peers[owner] >= limit
        if full and not self._visits.close_longest_idle(owner):
            raise ConnectionRefusedError(
                f"{owner} has {limit} connections already, the most allowed"
            )
        self._peers[owner] += 1
        try:
            with self._visits.begin(owner, peer, user) as visit, visit.scope:
                visit.hang_up = partial(_hang_up, stream)
                visit.has_unread = partial(_is_readable, stream.socket)
                await self._secured(handler, stream)
            if visit.gave_way:
                raise ConnectionRefusedError(
                    "closed for another connection: it had not authorized anything"
                )
            if visit.scope.cancelled_caught:
                raise trio.TooSlowError("it didn't authorize anything in time")
        finally:
            self._peers[owner] -= 1
            if not self._peers[owner]:
                del self._peers[owner]

    async def _secured(self, handler: ConnectionHandler, socket: trio.SocketStream) -> None:
        stream: trio.abc.Stream = DirectStream(socket)
        if self._tls is not None:
            stream = await accept_tls(stream, self._tls, self._options.handshake_timeout)
        try:
            await handler(stream)
        finally:
            # Closing TLS writes; a peer that doesn't read must not keep the slot.
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await stream.aclose()


def _hang_up(stream: trio.SocketStream) -> None:
    with suppress(OSError):  # the client was faster
        stream.socket.shutdown(trio.socket.SHUT_RDWR)


def _is_readable(end: trio.socket.SocketType) -> bool:
    """True if a client waits at the socket now, or bytes of one who hasn't left."""
    poll = select.poll()
    poll.register(end.fileno(), select.POLLIN | select.POLLRDHUP)
    return [events for _, events in poll.poll(0)] == [select.POLLIN]


def peer_address(stream: trio.abc.Stream) -> str | None:
    """The client's IP address, through all layers around the socket; None if unknown."""
    found = socket_of(stream)
    if found is None:
        return None
    try:
        host: str = found.socket.getpeername()[0]
    except OSError:
        return None
    return host.removeprefix("::ffff:")


def _peer_of(stream: trio.SocketStream) -> tuple[str, int | None]:
    """The client's address, and its user if it connected over a Unix socket."""
    try:
        if stream.socket.family == socket.AF_UNIX:
            process, user = unix.client_of(stream.socket)
            return f"{unix.PREFIX}{process}", user
        return written(stream.socket.getpeername()), None
    except OSError as error:  # the client left after the accept
        raise trio.BrokenResourceError("the client left before it was served") from error


def written(address: tuple[Any, ...] | str) -> str:
    """A socket's address as `host:port`, `[ipv6]:port` or `unix:PATH`."""
    if isinstance(address, str):
        return f"{unix.PREFIX}{address}"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _owner_of(peer: str) -> str:
    """The owner of a connection, for the limit: all clients on this machine are one."""
    if peer.startswith(unix.PREFIX):
        return "this machine"
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    address = ipaddress.ip_address(host)
    return "this machine" if address.is_loopback else str(address)


@attrs.define(eq=False)
class PausingListener(trio.abc.Listener[trio.SocketStream]):
    """
    Accepts only when a client waits, since the kernel looks for a descriptor before it looks for a
    client. Without a descriptor for one that waits it reports that, and pauses: Trio itself would
    write a traceback ten times a second.
    """

    inner: trio.SocketListener
    on_lack: Callable[[str, OSError], None]

    async def accept(self) -> trio.SocketStream:
        while True:
            await trio.lowlevel.wait_readable(self.inner.socket)
            try:
                stream = _accept_waiting(self.inner)
            except OSError as error:
                if not is_lack(error):
                    raise
                self.on_lack("", error)
                await trio.sleep(NO_ROOM_PAUSE)
            else:
                if stream is not None:
                    return stream

    async def aclose(self) -> None:
        await self.inner.aclose()


@attrs.define(eq=False)
class _SlottedListener(trio.abc.Listener[trio.SocketStream]):
    """
    Accepts only when a slot is free: surplus clients wait in the kernel, not in this process's
    memory.

    The connection that has been idle for longest without any authorization is closed for a client
    that waits, if there is no slot or no descriptor for it, and no other process accepts it.

    Of clients that come together, up to `AT_ONCE` are accepted without a checkpoint. Trio's accept
    takes a turn of the scheduler for each: under load, the last of 64 clients waited for 64 turns
    of all other connections. At a shared socket it is one, so that the clients are spread over the
    processes.
    """

    inner: trio.SocketListener
    slots: trio.Semaphore
    visits: Visits
    on_lost: OnEnd
    is_shared: bool  # whether other processes accept at the same socket
    _left: int = attrs.field(default=0, init=False)  # without a checkpoint

    async def accept(self) -> trio.SocketStream:
        if (another := self._another()) is not None:
            return another
        self._left = 0 if self.is_shared else AT_ONCE - 1
        while True:
            # A slot, and a descriptor, is needed only for a client that waits: until then, a
            # connection that ends may leave both, and none has to give way.
            await trio.lowlevel.wait_readable(self.inner.socket)
            if not self.slots.value and await self._is_left_to_this_process():
                self.visits.close_longest_idle()
            await self.slots.acquire()
            try:
                stream = self._accepted()
            except OSError as error:
                if not is_lack(error):
                    raise
                await self._make_room(error)
            else:
                if stream is not None:
                    return stream

    def _another(self) -> trio.SocketStream | None:
        """Accept a further one of the clients that came together; None if that must wait."""
        if not self._left or not self.slots.value:
            return None
        self._left -= 1
        self.slots.acquire_nowait()
        try:
            return self._accepted()
        except OSError:
            return None  # it occurs again, and is handled, at the next wait for clients

    def _accepted(self) -> trio.SocketStream | None:
        """Accept a client into the acquired slot; without one the slot is free again."""
        stream = None
        try:
            stream = _accept_waiting(self.inner)
        finally:
            if stream is None:
                self.slots.release()
        return stream

    async def _is_left_to_this_process(self) -> bool:
        """True if a client still waits when the other processes have had the time to accept it."""
        if self.is_shared:
            await trio.sleep(OTHERS_PAUSE)
        return _is_readable(self.inner.socket)

    async def _make_room(self, error: OSError) -> None:
        """
        Close the longest idle connection that has authorized nothing, and pause, if a client still
        waits: the process, or the system, has too many open files. Trio itself would write a
        traceback ten times a second.
        """
        if not await self._is_left_to_this_process():
            return
        self.on_lost("", error)
        self.visits.close_longest_idle()
        await trio.sleep(NO_ROOM_PAUSE)

    async def aclose(self) -> None:
        await self.inner.aclose()


def _accept_waiting(listener: trio.SocketListener) -> trio.SocketStream | None:
    """
    Accept a client that waits in the kernel's queue; None if none waits, or it has left.

    Raises:
        OSError: there is no descriptor for it, or the socket doesn't listen any more.
    """
    bound = listener.socket
    borrowed = socket.socket(bound.family, bound.type, bound.proto, fileno=bound.fileno())
    try:
        client, _ = borrowed.accept()
    except OSError as error:
        if is_lack(error) or error.errno in _NO_LISTENER:
            raise
        return None  # all other errors are the client's
    finally:
        borrowed.detach()
    return trio.SocketStream(trio.socket.from_stdlib_socket(client))
