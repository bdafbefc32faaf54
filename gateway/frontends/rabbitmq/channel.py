"""
A channel of a client, and the publishes on it that aren't confirmed yet.

Two counts run side by side: the client's since its own `confirm.select`, and the broker's since
that of the channel upstream, which the gateway asks for if the client doesn't. A confirm is for the
publish with its tag upstream; the client gets the tag of its own count.
"""

from collections.abc import Iterable

import attrs
from pamqp import base, commands

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.relayed import RelayedContent


@attrs.define(eq=False)
class KeptPublish:
    """A publish that is kept until the broker or the pair has confirmed it."""

    content: RelayedContent
    entity: EntityPath | None  # its queue; None: the pair has no such entity
    client_tag: int | None  # None: the client asked for no confirms
    since: float  # when it arrived, by Trio's clock
    channel: "RelayedChannel"
    is_moved: bool = False  # the pair has it, as its confirm is late
    in_doubt: bool = False  # the broker may have it, although it didn't confirm it


@attrs.define(eq=False)
class RelayedChannel:
    number: int
    client_confirms: bool = False
    upstream_confirms: bool = False
    is_transacted: bool = False
    incoming: RelayedContent | None = None  # a publish whose frames haven't all arrived
    # Requests that were passed on and have no answer yet, by the names of their answers.
    awaited: list[tuple[str, ...]] = attrs.field(factory=list)
    by_tag: dict[int, KeptPublish] = attrs.field(factory=dict)  # by the tag upstream, in order
    with_pair: int = 0  # publishes that the pair has
    is_open_upstream: bool = False
    is_reopening: bool = False  # the answer to that isn't for the client
    _client_tag: int = 0
    _upstream_tag: int = 0

    def counted(
        self, content: RelayedContent, publish: commands.Basic.Publish, now: float
    ) -> KeptPublish:
        """The publish with the client's tag, which the client may have counted."""
        tag = None
        if self.client_confirms:
            self._client_tag += 1
            tag = self._client_tag
        return KeptPublish(content, _entity_of(publish), tag, now, self)

    def keep(self, kept: KeptPublish) -> None:
        """Note that the publish was written upstream."""
        self._upstream_tag += 1
        self.by_tag[self._upstream_tag] = kept

    def expect(self, request: base.Frame) -> None:
        """Note a request that was passed on, if it has an answer."""
        if request.synchronous and not getattr(request, "nowait", False):
            self.awaited.append(tuple(request.valid_responses))

    def answered(self, answer: base.Frame) -> None:
        """Note an answer of the broker: answers come in the order of their requests."""
        for answers in self.awaited:
            if answer.name in answers:
                self.awaited.remove(answers)
                return

    def settle(self, tag: int, *, multiple: bool) -> list[KeptPublish]:
        """Stop keeping the publishes that a confirm with that tag (0: all) is for; return them."""
        if not multiple:
            found = self.by_tag.pop(tag, None)
            return [] if found is None else [found]
        tags = [each for each in self.by_tag if not tag or each <= tag]
        return [self.by_tag.pop(each) for each in tags]

    def lose(self) -> list[KeptPublish]:
        """
        Note that the channel upstream is gone. Return the publishes without a confirm, in their
        order: the broker may have each, or not.
        """
        left, self.by_tag = list(self.by_tag.values()), {}
        self._upstream_tag = 0
        self.upstream_confirms = self.is_open_upstream = self.is_reopening = False
        self.awaited.clear()
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


def _entity_of(publish: commands.Basic.Publish) -> EntityPath | None:
    """The queue of a publish to the default exchange."""
    if publish.exchange or not publish.routing_key or publish.routing_key.startswith("amq."):
        return None
    try:
        return EntityPath(publish.routing_key)
    except InvalidRequest:
        return None
