"""Settling deliveries as the client of a link says."""

from collections.abc import Sequence

import attrs
import trio

from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery, Settlement
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.errors import amqp_error
from gateway.frontends.amqp.receivers import settle_all_in_time
from gateway.frontends.amqp.settling import confirmation_of, settlement_of
from gateway.ports import Receiver, SettlesMany
from gateway.wire.amqp.events import DispositionReceived, Rejected


@attrs.define(eq=False)
class _Asked:
    event: DispositionReceived
    delivery: Delivery
    settlement: Settlement


@attrs.define(eq=False)
class Outcomes:
    """
    Does what the client of one link asks for, and only then confirms it.

    What comes in one read of the socket is settled together, if the receiver can do that.
    """

    _context: Context
    _receiver: Receiver
    _nursery: trio.Nursery
    _together: bool = attrs.field(init=False)
    _asked: list[_Asked] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._together = isinstance(self._receiver, SettlesMany)

    def settle(self, event: DispositionReceived, delivery: Delivery) -> None:
        """Have a delivery settled, soon."""
        try:
            asked = _Asked(event, delivery, settlement_of(event.state))
        except NotSupported as error:
            self._context.engine.settle(event.delivery, Rejected(error=amqp_error(error)))
            return
        self._context.pending.add()
        if not self._together:
            self._nursery.start_soon(self._settle, (asked,))
            return
        if not self._asked:  # the task begins when everything that was read is looked at
            self._nursery.start_soon(self._settle_asked)
        self._asked.append(asked)

    async def _settle_asked(self) -> None:
        group, self._asked = self._asked, []
        await self._settle(group)

    async def _settle(self, group: Sequence[_Asked]) -> None:
        settlements = [(each.delivery, each.settlement) for each in group]
        seconds = self._context.options.answer_timeout
        try:
            errors = await settle_all_in_time(self._receiver, settlements, seconds)
        finally:
            self._context.pending.drop(count=len(group))
        engine = self._context.engine
        for each, error in zip(group, errors, strict=True):
            if error is None:
                engine.settle(each.event.delivery, confirmation_of(each.event.state))
            else:
                engine.settle(each.event.delivery, Rejected(error=amqp_error(error)))
