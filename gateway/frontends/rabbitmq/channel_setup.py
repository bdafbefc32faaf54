"""The prefetch and the consumers that a client has set up on a channel; they are laid again."""

from collections.abc import Container, Iterator, Sequence
from typing import Final

import attrs
from pamqp import base, commands

STREAM_OFFSET: Final = "x-stream-offset"  # an argument of `basic.consume` on a stream

_OfQueue = (
    commands.Basic.Consume
    | commands.Basic.Get
    | commands.Queue.Bind
    | commands.Queue.Unbind
    | commands.Queue.Purge
    | commands.Queue.Delete
)


@attrs.define(eq=False)
class LaidConsumer:
    method: commands.Basic.Consume
    prefetch: int  # of its own: the channel's when it began
    offset: int | None = None  # in its stream, of its last delivery
    waits: bool = False  # its queue's node is down

    def again(self) -> commands.Basic.Consume:
        """The request that lets it go on."""
        if self.offset is not None:
            arguments = dict(self.method.arguments or {})
            self.method.arguments = {**arguments, STREAM_OFFSET: self.offset + 1}
        return self.method


@attrs.define(eq=False)
class ChannelSetup:
    prefetch: int = 0  # of each consumer that begins; 0: no limit
    shared_prefetch: int = 0  # of all consumers together
    last_queue: str = ""  # that an empty name in a request stands for
    consumers: dict[str, LaidConsumer] = attrs.field(factory=dict)  # by their tags, in their order

    def record(self, request: base.Frame, answer: base.Frame | None) -> Sequence[LaidConsumer]:
        """
        Note a request that the broker has accepted, or wasn't asked to answer. Return the consumers
        that it has ended.
        """
        match request:
            case commands.Basic.Qos() if request.global_:
                self.shared_prefetch = request.prefetch_count or 0
            case commands.Basic.Qos():
                self.prefetch = request.prefetch_count or 0
            case commands.Basic.Consume():
                if isinstance(answer, commands.Basic.ConsumeOk):
                    request.consumer_tag = answer.consumer_tag or ""
                self.name(request)
                request.nowait = False
                self.consumers[request.consumer_tag] = LaidConsumer(request, self.prefetch)
            case commands.Basic.Cancel():
                ended = self.consumers.pop(request.consumer_tag or "", None)
                return () if ended is None else (ended,)
            case commands.Queue.Declare():
                named = isinstance(answer, commands.Queue.DeclareOk) and answer.queue
                self.last_queue = named or request.queue
            case commands.Queue.Bind() | commands.Queue.Unbind() | commands.Queue.Delete():
                self.name(request)
        return ()

    def name(self, request: base.Frame) -> bool:
        """
        Put the name of the last declared queue where an empty one stands for it (1.7.2.3); False:
        there is nothing to put.
        """
        if not isinstance(request, _OfQueue) or request.queue or not self.last_queue:
            return False
        request.queue = self.last_queue
        if isinstance(request, commands.Queue.Bind | commands.Queue.Unbind):
            request.routing_key = request.routing_key or self.last_queue
        return True

    def requests(self) -> Iterator[tuple[base.Frame, LaidConsumer | None]]:
        """The requests that set the channel up again, in order; each with its consumer."""
        yield commands.Channel.Open(), None
        if self.shared_prefetch:
            yield commands.Basic.Qos(prefetch_count=self.shared_prefetch, global_=True), None
        prefetch = 0
        for consumer in list(self.consumers.values()):
            if consumer.waits:
                continue
            if consumer.prefetch != prefetch:
                prefetch = consumer.prefetch
                yield commands.Basic.Qos(prefetch_count=prefetch), None
            yield consumer.again(), consumer
        if self.prefetch != prefetch:
            yield commands.Basic.Qos(prefetch_count=self.prefetch), None

    def resume(self, down: Container[str]) -> Sequence[base.Frame]:
        """
        The requests for the consumers that have waited for a queue that isn't in `down` any more.
        Some may be there: a queue that lacked a leader alone has kept its consumers.
        """
        made: list[base.Frame] = []
        prefetch = self.prefetch
        for consumer in self.consumers.values():
            if not consumer.waits or consumer.method.queue in down:
                continue
            consumer.waits = False
            made.append(commands.Basic.Cancel(consumer.method.consumer_tag, nowait=True))
            if consumer.prefetch != prefetch:
                prefetch = consumer.prefetch
                made.append(commands.Basic.Qos(prefetch_count=prefetch))
            made.append(consumer.again())
        if prefetch != self.prefetch:
            made.append(commands.Basic.Qos(prefetch_count=self.prefetch))
        return made
