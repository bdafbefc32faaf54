"""Links to send on: one per entity, attached on first use and kept attached."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

import attrs
import trio

from gateway.brokers.amqp.options import LinkOptions
from gateway.brokers.amqp.peer import NamespaceConnection, Take
from gateway.domain.entity import EntityPath
from gateway.domain.errors import Unavailable
from gateway.net.amqp.links import ReceivingLink, SendingLink
from gateway.wire.amqp.events import AmqpError, NewLink, SessionId, Terminus

T = TypeVar("T")
K = TypeVar("K")

DEFAULT_SIZE: Final = 1024 * 1024  # bytes; for a peer that names no limit


@attrs.define(eq=False)
class Sender:
    """An attached link, and the watch on its queue."""

    peer: NamespaceConnection
    address: str
    link: SendingLink
    watch: "QueueWatch | None" = None

    @property
    def max_size(self) -> int:
        """The largest message, in bytes."""
        assert self.link.answer is not None, "it is attached"
        return self.link.answer.max_message_size or DEFAULT_SIZE

    @property
    def idle(self) -> bool:
        return self.link.idle

    @property
    def is_authorized(self) -> bool:
        """True if the peer still takes messages on the link, as its token is good."""
        return self.peer.is_authorized(self.address)

    async def authorize(self) -> None:
        """As `NamespaceConnection.authorize`."""
        await self.peer.authorize(self.address)

    def close(self) -> None:
        self.link.close()
        if self.watch is not None:
            self.watch.close()


class QueueWatch(ReceivingLink):
    """
    A link without credit that watches a queue: it ends when the queue is deleted, and ends the
    sender's link then.

    A message that is accepted in between is lost with the deleted queue, as if it had been on the
    queue.
    """

    sender: SendingLink | None = None

    def over(self, why: AmqpError) -> None:
        super().over(why)
        if self.sender is not None:
            self.sender.close(because=why)


async def within(seconds: float, what: str, step: Callable[[], Awaitable[T]]) -> T:
    """
    Call `step` with a timeout.

    Raises:
        Unavailable: the timeout expired; nothing was sent.
    """
    with trio.move_on_after(seconds):
        return await step()
    raise Unavailable(f"{what}: no link was attached within {seconds:.3g} s")


async def attach_sender(
    take: Take, entity: EntityPath, options: LinkOptions, session: SessionId | None = None
) -> Sender:
    """
    Attach a new link to send to the entity, in a session of its own unless one is given.

    Raises:
        BrokerError: the entity doesn't exist, or the link can't be attached. Nothing was sent.
    """
    while True:
        peer = await take()
        address = peer.dialect.address(entity)
        with peer.until_replaced(), peer.judged():
            return await peer.attach(address, partial(_attach, peer, address, options, session))


async def _attach(
    peer: NamespaceConnection, address: str, options: LinkOptions, session: SessionId | None
) -> Sender:
    watch = await attach_watch(peer, address) if peer.dialect.watched else None
    try:
        name = peer.new_name("sender")
        new = NewLink(
            name=name,
            we_send=True,
            source=Terminus(address=name),
            target=Terminus(address=address, capabilities=peer.dialect.node),
        )
        link = await SendingLink(peer.client, new, session, window=options.window).once_attached()
    except BaseException:
        if watch is not None:
            watch.close()
        raise
    if watch is not None:
        watch.sender = link
        if watch.why is not None:
            link.close(because=watch.why)
            raise watch.refusal()
    return Sender(peer, address, link, watch)


async def attach_watch(peer: NamespaceConnection, address: str) -> QueueWatch:
    """
    Attach a link without credit to the address.

    Raises:
        BrokerError: the peer refuses it, or the connection has ended.
    """
    name = peer.new_name("watch")
    new = NewLink(
        name=name, we_send=False, source=Terminus(address=address), target=Terminus(address=name)
    )
    return await QueueWatch(peer.client, new).once_attached()


class _Closable(Protocol):
    @property
    def idle(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


def drop_idle(kept: dict[K, C], most: int) -> None:
    """Close and remove those in excess of `most` that are idle, the least recently used first."""
    surplus = len(kept) - most
    for key, each in list(kept.items())[: max(0, surplus)]:
        if each.idle:
            del kept[key]
            each.close()


@attrs.define(eq=False)
class _CachedLink:
    """The link of one entity, and the lock of the task that attaches it."""

    attaching: trio.Lock = attrs.field(factory=trio.Lock)
    sender: Sender | None = None

    @property
    def alive(self) -> bool:
        if self.sender is None or self.sender.link.why is not None:
            return False
        return not self.sender.peer.is_replaced

    @property
    def idle(self) -> bool:
        return not self.attaching.locked() and (self.sender is None or self.sender.idle)

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()


@attrs.define(eq=False, kw_only=True)
class Senders:
    """
    The attached links. Above the limit, the least recently used ones are closed if they are idle.
    """

    _take: Callable[[float], Awaitable[NamespaceConnection]]  # as `Connections.take`
    _options: LinkOptions
    _kept: dict[str, _CachedLink] = attrs.field(factory=dict, init=False)  # the last used is last

    async def get(self, entity: EntityPath, since: float) -> Sender:
        """
        Return a link to send to the entity.

        Raises:
            BrokerError: the link can't be attached, there is no connection, as in
                `Connections.take`, or no token instead of one that expires. Nothing was sent.
        """
        kept = self._kept.pop(entity.key, None) or _CachedLink()
        self._kept[entity.key] = kept
        drop_idle(self._kept, self._options.max_senders)
        if kept.sender is None or not kept.alive or not kept.sender.is_authorized:
            await within(
                self._options.connect_timeout,
                str(entity),
                lambda: self._attach(kept, entity, since),
            )
        assert kept.sender is not None, "it was attached"
        return kept.sender

    def forget(self, entity: EntityPath) -> None:
        """Close the link of an entity that doesn't exist any more, unless it is in use."""
        kept = self._kept.get(entity.key)
        if kept is not None and kept.idle:
            del self._kept[entity.key]
            kept.close()

    async def _attach(self, kept: _CachedLink, entity: EntityPath, since: float) -> None:
        async with kept.attaching:
            if kept.sender is not None and kept.alive:
                await kept.sender.authorize()
            else:
                take = partial(self._take, since)
                kept.sender = await attach_sender(take, entity, self._options)
