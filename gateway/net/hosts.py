"""The hosts of a cluster, of which any may be used; the next one is tried when a host fails."""

import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
import trio

from gateway.domain.errors import BrokerError, Unavailable
from gateway.net.server_address import ServerAddress
from gateway.wire.http.hosts import Host

T = TypeVar("T")

Use = Callable[[ServerAddress, float], Awaitable[T]]
"""Uses a host, within the given seconds; raises BrokerError."""


@attrs.define(eq=False, kw_only=True)
class Hosts:
    """
    The hosts at which a server can be reached.

    The first host is a random one, so that many gateways spread over a cluster. Each later use
    begins with the host after the last tried one, which has failed or has lost its connection
    since.
    """

    _places: Sequence[ServerAddress]
    _rng: random.Random
    _next: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = self._rng.randrange(len(self._places)) if len(self._places) > 1 else 0

    def __str__(self) -> str:
        return ", ".join(map(str, self._places))

    async def first(self, use: Use[T], seconds: float) -> T:
        """
        Return the result of `use` for the first host with which it doesn't fail. Each host gets an
        equal share of the time left of `seconds`, so that a hanging host leaves time for the
        others.

        Raises:
            BrokerError: `use` failed with all hosts; names each host, and each cause once. Its
                class is that of all failures, or Unavailable if they differ: a refusal by one node
                isn't definite while another node can't be reached.
        """
        end = trio.current_time() + seconds
        failures: list[tuple[ServerAddress, BrokerError]] = []
        for left in range(len(self._places), 0, -1):
            place = self._acquire_turn()
            try:
                return await use(place, (end - trio.current_time()) / left)
            except BrokerError as error:
                failures.append((place, error))
        raise _summary(failures)

    def _acquire_turn(self) -> ServerAddress:
        place = self._places[self._next]
        self._next = (self._next + 1) % len(self._places)
        return place


def places_of(
    hosts: Sequence[Host], port: int, tls: ssl.SSLContext | None
) -> Sequence[ServerAddress]:
    """The addresses of those hosts; `port` is for hosts without a port of their own."""
    return [ServerAddress(host=host.name, port=host.port or port, tls=tls) for host in hosts]


def _summary(failures: Sequence[tuple[ServerAddress, BrokerError]]) -> BrokerError:
    errors = [error for _, error in failures]
    if len(errors) == 1:
        return errors[0]
    places: dict[str, list[str]] = {}
    for place, error in failures:
        places.setdefault(str(error).removeprefix(f"{place}: "), []).append(str(place))
    text = "; ".join(f"{', '.join(those)}: {cause}" for cause, those in places.items())
    kinds = {type(error) for error in errors}
    return kinds.pop()(text) if len(kinds) == 1 else Unavailable(text)
