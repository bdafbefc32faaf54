"""Links to send on: one for each entity, attached when it is needed and kept as long as it may."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import attrs
import trio

from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import Peer, Take
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.net.amqp_links import ReceivingLink, SendingLink
from gateway.wire.amqp.events import AmqpError, NewLink, Terminus

T = TypeVar("T")

DEFAULT_SIZE: Final = 1024 * 1024  # bytes: of a peer that names no limit


@attrs.define(eq=False)
class Sender:
    """A link that is attached, and what keeps watch on its queue."""

    peer: Peer
    link: SendingLink
    watch: "Watch | None" = None

    @property
    def max_size(self) -> int:
        """Bytes of a message."""
        assert self.link.answer is not None, "it is attached"
        return self.link.answer.max_message_size or DEFAULT_SIZE

    def close(self) -> None:
        self.link.close()
        if self.watch is not None:
            self.watch.close()


class Watch(ReceivingLink):
    """
    A link without credit: it ends when its queue does, and the sender's with it.

    What is accepted between the two is as if it had been on the queue when that was deleted.
    """

    sender: SendingLink | None = None

    def over(self, why: AmqpError) -> None:
        super().over(why)
        if self.sender is not None:
            self.sender.close(because=why)


async def within(seconds: float, what: str, step: Callable[[], Awaitable[T]]) -> T:
    """
    Raises:
        Unavailable: it took longer; nothing was sent.
    """
    with trio.move_on_after(seconds):
        return await step()
    raise Unavailable(f"{what}: no link within {seconds:g} s")


async def attach_sender(take: Take, entity: EntityPath, options: LinkOptions) -> Sender:
    """
    A new link to send to that entity.

    Raises:
        BrokerError: there is none, or no such entity. Nothing was sent.
    """
    peer = await take()
    address = peer.dialect.address(entity)
    return await peer.attach(address, partial(_attach, peer, address, options))


async def _attach(peer: Peer, address: str, options: LinkOptions) -> Sender:
    watch = await _watch(peer, address) if peer.dialect.watched else None
    try:
        name = peer.new_name("sender")
        new = NewLink(
            name=name,
            we_send=True,
            source=Terminus(address=name),
            target=Terminus(address=address),
        )
        link = SendingLink(peer.client, new, window=options.window)
        try:
            await link.wait_attached()
        except BaseException:
            link.close()
            raise
    except BaseException:
        if watch is not None:
            watch.close()
        raise
    if watch is not None:
        watch.sender = link
        if watch.why is not None:
            link.close(because=watch.why)
            raise watch.refusal()
    return Sender(peer, link, watch)


async def _watch(peer: Peer, address: str) -> Watch:
    name = peer.new_name("watch")
    new = NewLink(
        name=name, we_send=False, source=Terminus(address=address), target=Terminus(address=name)
    )
    watch = Watch(peer.client, new)
    try:
        await watch.wait_attached()
    except BaseException:
        watch.close()
        raise
    return watch


@attrs.define(eq=False)
class _Kept:
    """The link of one entity, or the one who attaches it."""

    attaching: trio.Lock = attrs.field(factory=trio.Lock)
    sender: Sender | None = None

    @property
    def alive(self) -> bool:
        return self.sender is not None and self.sender.link.why is None

    @property
    def idle(self) -> bool:
        return not self.attaching.locked() and (self.sender is None or self.sender.link.idle)


@attrs.define(eq=False, kw_only=True)
class Senders:
    """The links that are kept; the one that was used longest ago goes first."""

    _take: Callable[[float], Awaitable[Peer]]  # as `Connections.take`
    _options: LinkOptions
    _kept: dict[str, _Kept] = attrs.field(factory=dict, init=False)  # the last used is the last

    async def get(self, entity: EntityPath, since: float) -> Sender:
        """
        A link to send to that entity on.

        Raises:
            BrokerError: there is none, or no connection, as `Connections.take` says. Nothing was
                sent.
        """
        kept = self._kept.pop(entity.key, None) or _Kept()
        self._kept[entity.key] = kept
        self._drop_idle()
        if kept.sender is None or not kept.alive:
            await within(
                self._options.connect_timeout,
                str(entity),
                lambda: self._attach(kept, entity, since),
            )
        assert kept.sender is not None, "it was attached"
        return kept.sender  # noqa: ASYNC910 what is sent on it waits

    def forget(self, entity: EntityPath) -> None:
        """Close the link of an entity that isn't there any more, if nothing is under way."""
        kept = self._kept.get(entity.key)
        if kept is not None and kept.idle:
            del self._kept[entity.key]
            if kept.sender is not None:
                kept.sender.close()

    async def _attach(self, kept: _Kept, entity: EntityPath, since: float) -> None:
        async with kept.attaching:
            if not kept.alive:
                take = partial(self._take, since)
                kept.sender = await attach_sender(take, entity, self._options)

    def _drop_idle(self) -> None:
        surplus = len(self._kept) - self._options.max_senders
        for key, kept in list(self._kept.items())[: max(0, surplus)]:
            if kept.idle:
                del self._kept[key]
                if kept.sender is not None:
                    kept.sender.close()
