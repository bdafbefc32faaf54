"""The room for leases and receivers, of which each client leaves some for the others."""

from collections import Counter

import attrs

from gateway.domain.errors import Busy


@attrs.define(eq=False)
class LeaseRoom:
    """
    Counts the leases of each client, and the deliveries that its pending receives may return; or
    the receivers that each client has opened.

    A client may have as many as it leaves for the others, at most: neither one client nor a few
    together can take all of them.
    """

    most: int  # of all clients together
    things: str = "unsettled deliveries"
    remedy: str = "settle some first"
    _taken: int = attrs.field(default=0, init=False)
    _of_clients: Counter[str] = attrs.field(factory=Counter, init=False)

    def has(self, client: str, count: int) -> bool:
        """True if the client may have `count` more."""
        return self._of_clients[client] + count <= self.most - self._taken

    def check(self, client: str, count: int) -> None:
        """
        Check that the client may have `count` more.

        Raises:
            Busy: it may not.
        """
        if not self.has(client, count):
            own = self._of_clients[client]
            text = f"of at most {self.most} {self.things} this client has {own}"
            raise Busy(f"{text}: {self.remedy}")

    def take(self, client: str, count: int = 1) -> None:
        """Count `count` more of the client."""
        self._taken += count
        self._of_clients[client] += count

    def give_back(self, client: str, count: int = 1) -> None:
        """Count `count` fewer of the client."""
        self._taken -= count
        self._of_clients[client] -= count
        if not self._of_clients[client]:
            del self._of_clients[client]
