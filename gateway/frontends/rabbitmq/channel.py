"""
A channel of a client, and the publishes on it that aren't confirmed yet.

Two counts run side by side: the client's since its own `confirm.select`, and the broker's since
that of the channel upstream, which the gateway asks for if the client doesn't. A confirm is for the
publish with its tag upstream; the client gets the tag of its own count.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

import attrs
from pamqp import base, commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import MessageError
from gateway.frontends.rabbitmq.channel_setup import ChannelSetup
from gateway.frontends.rabbitmq.delivery_tags import DeliveryTags
from gateway.frontends.rabbitmq.replies import ChannelReplies
from gateway.net.shared_turns import SharedTurn
from gateway.wire.rabbitmq.content import read_content_header
from gateway.wire.rabbitmq.exchanges import entity_of_exchange, entity_of_queue
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.relayed import RelayedContent, RelayedFrame

_DIRECT_REPLY: Final = "amq.rabbitmq.reply-to"  # RabbitMQ's pseudo-queue


@attrs.define(eq=False)
class KeptPublish:
    """A publish that is kept until the broker or the pair has confirmed it."""

    content: RelayedContent
    exchange: str
    entity: EntityPath | None  # its queue or exchange; None: the pair has no such entity
    client_tag: int | None  # None: the client asked for no confirms
    since: float  # when it arrived, by Trio's clock
    channel: "RelayedChannel"
    is_moved: bool = False  # the pair has it, as its confirm is late
    in_doubt: bool = False  # the broker may have it, although it didn't confirm it
    turn: SharedTurn | None = None  # that it holds until its verdict


@attrs.frozen
class AwaitedRequest:
    """A method that was passed on, and has no answer yet."""

    frame: RelayedFrame
    method: base.Frame
    since: float  # by Trio's clock
    is_own: bool = False  # of the gateway, for a consumer that has waited
    turn: SharedTurn | None = None  # that it holds until its answer

    def release(self) -> None:
        """Note that it has its answer, or waits for none any more."""
        if self.turn is not None:
            self.turn.release()


@attrs.define(eq=False)
class RelayedChannel:
    number: int
    client_confirms: bool = False
    upstream_confirms: bool = False
    is_transacted: bool = False
    in_transaction: int = 0  # publishes since its last end
    incoming: RelayedContent | None = None  # a publish whose frames haven't all arrived
    awaited: list[AwaitedRequest] = attrs.field(factory=list)
    held: list[RelayedFrame] = attrs.field(factory=list)  # requests that wait for the return
    held_since: float = 0.0  # by Trio's clock
    delivery: RelayedContent | None = None  # to the client, whose frames haven't all arrived
    tags: DeliveryTags = attrs.field(factory=DeliveryTags)
    setup: ChannelSetup = attrs.field(factory=ChannelSetup)
    by_tag: dict[int, KeptPublish] = attrs.field(factory=dict)  # by the tag upstream, in order
    with_pair: int = 0  # publishes that the pair has
    is_open_upstream: bool = False
    is_closed: bool = False  # by an error, which the client hasn't confirmed
    owes_close_ok: bool = False  # to the primary, whose error it was
    owes_close: bool = False  # to the primary: it's closed there before it's opened again
    # Whether the gateway names the queue where a request doesn't: the primary hasn't seen the last
    # declaration on this channel, as it was opened again.
    names_queues: bool = False
    replies: ChannelReplies | None = None  # the primary's, while the channel is opened again
    _client_tag: int = 0
    _upstream_tag: int = 0

    @property
    def has_confirms_to_end(self) -> bool:
        """
        True if the gateway alone has selected confirms, and neither a consumer nor a delivery would
        end with the channel upstream. What else would, as the prefetch, is laid again.
        """
        is_own = self.upstream_confirms and not self.client_confirms
        return is_own and not (self.setup.consumers or self.tags.has_any)

    def counted(
        self, content: RelayedContent, publish: commands.Basic.Publish, now: float
    ) -> KeptPublish:
        """The publish with the client's tag, which the client may have counted."""
        tag = None
        if self.client_confirms:
            self._client_tag += 1
            tag = self._client_tag
        entity = None
        if not (publish.immediate or _asks_for_direct_reply(content)):  # `immediate` is 540 at home
            entity = _entity_of(publish)
        return KeptPublish(content, publish.exchange, entity, tag, now, self)

    def keep(self, kept: KeptPublish) -> None:
        """Note that the publish was written upstream."""
        self._upstream_tag += 1
        self.by_tag[self._upstream_tag] = kept

    def answered(self, answer: base.Frame) -> AwaitedRequest | None:
        """Note an answer of the broker; return its request."""
        for request in self.awaited:
            if answer.name in request.method.valid_responses:
                self.awaited.remove(request)
                request.release()
                return request
        return None

    def drop_awaited(self) -> list[AwaitedRequest]:
        """Wait for no answer of the broker any more; return the requests that have none."""
        dropped, self.awaited = self.awaited, []
        for request in dropped:
            request.release()
        return dropped

    def settle(self, tag: int, *, multiple: bool) -> list[KeptPublish]:
        """Stop keeping the publishes that a confirm with that tag (0: all) is for; return them."""
        if not multiple:
            found = self.by_tag.pop(tag, None)
            return [] if found is None else [found]
        tags = list(takewhile(lambda each: not tag or each <= tag, self.by_tag))  # in order
        return [self.by_tag.pop(each) for each in tags]

    def lose(self) -> list[KeptPublish]:
        """
        Note that the channel upstream is gone. Return the publishes without a confirm, in their
        order: the broker may have each, or not.
        """
        left, self.by_tag = list(self.by_tag.values()), {}
        self._upstream_tag = 0
        self.upstream_confirms = self.is_open_upstream = False
        self.owes_close_ok = self.owes_close = False
        self.delivery = None
        self.tags.lose()
        return left

    def confirms(self, publishes: Iterable[KeptPublish], *, accepted: bool) -> bytes:
        """The frames that tell the client; a run of tags in one, if none before it is open."""
        tags = [each.client_tag for each in publishes if each.client_tag is not None]
        if not tags:
            return b""
        kind = commands.Basic.Ack if accepted else commands.Basic.Nack
        if accepted and len(tags) > 1 and not self.with_pair and self._all_before(tags[-1]):
            return method_frame(self.number, kind(delivery_tag=max(tags), multiple=True))
        return b"".join([self._frame(kind, tag) for tag in tags])

    def _frame(self, kind: type[commands.Basic.Ack | commands.Basic.Nack], tag: int) -> bytes:
        return method_frame(self.number, kind(delivery_tag=tag))

    def _all_before(self, tag: int) -> bool:
        first = next(iter(self.by_tag.values()), None)
        return first is None or first.client_tag is None or first.client_tag > tag


def _asks_for_direct_reply(content: RelayedContent) -> bool:
    """
    True if the reply goes to the channel that published: RabbitMQ takes such a publish there alone.
    """
    if _DIRECT_REPLY.encode() not in content.header:  # as nearly always
        return False
    try:
        return read_content_header(content.header).get("reply_to") == _DIRECT_REPLY
    except MessageError:
        return False  # the primary, or the pair, says what is wrong


def _entity_of(publish: commands.Basic.Publish) -> EntityPath | None:
    """The exchange of a publish; of the default exchange its queue."""
    if publish.exchange:
        return entity_of_exchange(publish.exchange)
    if not publish.routing_key or publish.routing_key.startswith("amq."):
        return None
    return entity_of_queue(publish.routing_key)
