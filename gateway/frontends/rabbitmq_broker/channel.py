"""
A channel: what its client asks is done in the order in which it came. Publishes that have arrived
one after the other are sent together, and so are settlements; while other clients have work, as
many as this client may have in progress, in its turn.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice, takewhile
from typing import Any, Final

import attrs
import trio
from pamqp import base, commands

from gateway.domain.errors import BrokerError
from gateway.frontends.rabbitmq_broker.channel_owner import ChannelOwner
from gateway.frontends.rabbitmq_broker.deliveries import ChannelDeliveries
from gateway.frontends.rabbitmq_broker.publishing import (
    SETTLES,
    ArrivedPublish,
    ChannelPublishes,
)
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, refusal_of
from gateway.frontends.rabbitmq_broker.requests import ChannelRequests
from gateway.net.visits import acquire_turn, largest_step
from gateway.wire.rabbitmq.relayed import RelayedContent

# The publishes of one send: as many as the wire gives the pair, and as many bytes as over AMQP 1.0.
_TOGETHER: Final = 100
_BYTES_TOGETHER: Final = 1024 * 1024

_Work = base.Frame | ArrivedPublish


@attrs.define(eq=False)
class ServedChannel:
    owner: ChannelOwner
    incoming: RelayedContent | None = None  # a publish whose frames haven't all arrived
    is_closed: bool = False  # by an error, which the client hasn't confirmed
    _inbox: deque[tuple[_Work, int]] = attrs.field(factory=deque, init=False)
    _arrived: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def put(self, work: _Work, size: int) -> None:
        """Add what the client has sent last, which takes so many bytes."""
        self._inbox.append((work, size))
        self._arrived.unpark_all()

    def cancel(self) -> None:
        """End `run`: the channel is closed."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until the channel is closed. Its unsettled deliveries go back then."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    deliveries = ChannelDeliveries(self.owner, nursery)
                    try:
                        nursery.start_soon(deliveries.renew_locks)
                        await self._work(deliveries)
                    finally:
                        deliveries.close()
                    nursery.cancel_scope.cancel()
        finally:
            self._finish([size for _, size in self._inbox])
            self._inbox.clear()

    def _finish(self, sizes: Sequence[int]) -> None:
        """Note that what took so many bytes is answered, or never will be."""
        for size in sizes:
            self.owner.pending.finish(size)

    async def _work(self, deliveries: ChannelDeliveries) -> None:
        """Returns when the client has closed the channel."""
        publishes = ChannelPublishes(self.owner, deliveries)
        requests = ChannelRequests(self.owner, publishes, deliveries)
        try:
            while not self.is_closed:
                while not self._inbox:
                    await self._arrived.park()
                if isinstance(self._inbox[0][0], commands.Channel.Close):
                    return
                await self._do_next(publishes, requests)
            await trio.sleep_forever()  # the connection cancels `run`
        finally:
            publishes.close()

    async def _do_next(self, publishes: ChannelPublishes, requests: ChannelRequests) -> None:
        work = self._inbox[0][0]
        try:
            if isinstance(work, ArrivedPublish):
                await self._together(ArrivedPublish, publishes.publish)
            elif isinstance(work, SETTLES):
                await self._together(SETTLES, publishes.settle)
            else:
                await self._together(type(work), requests.handle, most=1)
        except ClientRefused as refusal:
            self.owner.refuse(refusal, _index_of(work))
        except BrokerError as error:
            self.owner.refuse(refusal_of(error), _index_of(work))

    async def _together(
        self, kind: Any, handle: Callable[[Sequence[Any]], Awaitable[None]], most: int = _TOGETHER
    ) -> None:
        """Handle the first work in the inbox, as long as it is of that kind; wait for a turn."""
        most, most_bytes = largest_step(most, _BYTES_TOGETHER)
        of_kind = takewhile(lambda each: isinstance(each[0], kind), self._inbox)
        waiting = [size for _, size in islice(of_kind, most)]
        turn = await acquire_turn(min(sum(waiting), most_bytes), len(waiting))
        some, sizes = self._pop(kind, most, most_bytes)  # more may have arrived
        try:
            await handle(some)
            if turn is not None and self._inbox:
                # The tasks that a request has begun or ended are a part of its turn.
                await trio.lowlevel.checkpoint()
        finally:
            if turn is not None:
                turn.release()
            self._finish(sizes)

    def _pop(self, kind: Any, most: int, most_bytes: int) -> tuple[list[Any], list[int]]:
        """Take the first work of that kind, one at least, with its sizes."""
        some: list[Any] = []
        sizes: list[int] = []
        while self._inbox and len(some) < most and isinstance(self._inbox[0][0], kind):
            work, size = self._inbox[0]
            most_bytes -= size
            if some and most_bytes < 0:
                break
            self._inbox.popleft()
            some.append(work)
            sizes.append(size)
        return some, sizes


def _index_of(work: _Work) -> int:
    method = work.method if isinstance(work, ArrivedPublish) else work
    return method.index
