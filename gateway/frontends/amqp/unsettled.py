"""Deliveries that the client of one link hasn't settled."""

from collections.abc import Callable, Sequence
from math import inf

import attrs

from gateway.domain.errors import Busy
from gateway.domain.message import Delivery
from gateway.wire.amqp.events import DeliveryId


@attrs.define(eq=False)
class Unsettled:
    """
    Unsettled deliveries up to a limit: deliveries on the link, and deferred messages, which were
    sent in a reply.
    """

    _most: int
    _sent: dict[DeliveryId, Delivery] = attrs.field(factory=dict, init=False)
    _ids: dict[str, DeliveryId] = attrs.field(factory=dict, init=False)  # by lock token
    _deferred: dict[str, Delivery] = attrs.field(factory=dict, init=False)  # by lock token

    @property
    def room(self) -> int:
        return self._most - len(self._sent)

    def add(self, id_: DeliveryId, delivery: Delivery) -> None:
        assert delivery.lock_token is not None, "it was received with a lock"
        self._sent[id_] = delivery.handle
        self._ids[delivery.lock_token] = id_

    def pop(self, id_: DeliveryId) -> Delivery | None:
        """Remove and return the delivery; the caller settles it."""
        delivery = self._sent.pop(id_, None)
        if delivery is not None and delivery.lock_token is not None:
            self._ids.pop(delivery.lock_token, None)
        return delivery

    def get(self, id_: DeliveryId) -> Delivery | None:
        """A delivery that was sent and isn't settled; the client may still settle it."""
        return self._sent.get(id_)

    def pop_by_token(self, lock_token: str) -> DeliveryId | None:
        """
        Remove the sent delivery with that lock token and return its id; the caller settles it.
        """
        id_ = self._ids.get(lock_token)
        if id_ is not None:
            self.pop(id_)
        return id_

    def pop_expired(
        self, end_of: Callable[[Delivery], float], now: float
    ) -> tuple[Sequence[DeliveryId], float]:
        """
        Forget the deliveries whose locks have expired; return them, and when the next lock may
        expire.
        """
        ends = {id_: end_of(delivery) for id_, delivery in self._sent.items()}
        lost = [id_ for id_, end in ends.items() if end <= now]
        for id_ in lost:
            self.pop(id_)
        return lost, min((end for end in ends.values() if end > now), default=inf)

    def pop_all(self) -> Sequence[Delivery]:
        """Remove and return all deliveries; the caller settles them."""
        taken = [*self._sent.values(), *self._deferred.values()]
        self._sent.clear()
        self._ids.clear()
        self._deferred.clear()
        return taken

    def check_room(self, count: int) -> None:
        """
        Check that there is room for `count` more deliveries.

        Raises:
            Busy: the client has to settle some deliveries first.
        """
        if len(self._deferred) + len(self._sent) + count > self._most:
            raise Busy(f"this link has {self._most} unsettled deliveries: settle some first")

    def add_deferred(self, deliveries: Sequence[Delivery]) -> None:
        self._deferred.update(
            (each.lock_token, each.handle) for each in deliveries if each.lock_token is not None
        )

    def drop_deferred(self, lock_token: str) -> None:
        self._deferred.pop(lock_token, None)

    def find(self, lock_token: str) -> Delivery | None:
        id_ = self._ids.get(lock_token)
        return self._deferred.get(lock_token) if id_ is None else self._sent[id_]
