"""The addresses of the gateways of a cluster, and the gateway that a token names."""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs
import trio

from gateway.domain.errors import starting_thread
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.cluster.tokens import tag_of
from gateway.net.listeners import split_address, written

MOST_MEMBERS: Final = 1000  # a name that has more addresses is not that of a cluster
LOOK_UP_SECONDS: Final = 2.0  # a resolver that answers later is asked again
BETWEEN_LOOK_UPS: Final = 1.0  # seconds between two look-ups, whatever the number of unknown tags

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses `HOST:PORT` of a name; raises OSError."""


def normal(address: str) -> str:
    """
    The canonical form of an address, so that all gateways compute the same tag from it.

    Raises:
        gateway.net.listeners.CannotListen: it isn't HOST:PORT.
    """
    host, port = split_address(address)
    host = host.rstrip(".").lower()
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        return f"{host}:{port}"
    return written((host, port))


async def resolve(host: str, port: int) -> Sequence[str]:
    """
    The addresses of the name, by DNS.

    Raises:
        OSError: DNS doesn't answer, or doesn't know the name, or no host can have it.
    """
    try:
        with starting_thread(f"{host} can't be looked up: "):
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # from IDNA
        raise OSError(f"{host:.80} is no host name: {error}") from error
    return [normal(written(address)) for *_, address in found]


@attrs.define(eq=False)
class Members:
    """
    Knows the peers: those of the configuration, and those of the service's name in DNS.

    A `gateway.ports.Service`: `run` looks the name up again and again. If DNS fails, the last
    addresses are kept.
    """

    _options: ClusterOptions
    _resolve: Resolve = resolve
    own: str = attrs.field(init=False)
    _fixed: Sequence[str] = attrs.field(init=False)
    _addresses: dict[int, str] = attrs.field(factory=dict, init=False)  # by tag
    _looked_up: float = attrs.field(default=float("-inf"), init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.own = normal(self._options.address)
        self._fixed = [normal(each) for each in self._options.peers]
        self._set(())

    @property
    def peers(self) -> Sequence[str]:
        """The addresses of all other gateways."""
        return list(self._addresses.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look the service's name up until cancelled. Without a service, return at once."""
        task_status.started()
        while self._options.service is not None:
            await self._refresh()
            await trio.sleep(self._options.refresh)

    async def find(self, tag: int) -> str | None:
        """
        The address of the peer with that tag; None: there is no such peer. An unknown tag causes a
        look-up of the name, at most once a second.
        """
        if tag not in self._addresses and self._options.service is not None:
            async with self._lock:
                if tag not in self._addresses and self._is_due():
                    await self._refresh()
        return self._addresses.get(tag)

    def _is_due(self) -> bool:
        return trio.current_time() - self._looked_up >= BETWEEN_LOOK_UPS

    async def _refresh(self) -> None:
        host, port = split_address(self._options.service or "")
        try:
            with trio.move_on_after(LOOK_UP_SECONDS):
                self._set(await self._resolve(host, port))
        except OSError:
            return  # the name may be unknown until the first gateway is ready
        finally:
            self._looked_up = trio.current_time()

    def _set(self, found: Sequence[str]) -> None:
        others = dict.fromkeys([*self._fixed, *found][:MOST_MEMBERS])
        others.pop(self.own, None)
        self._addresses = {tag_of(each): each for each in others}
