"""The two counts of a channel: the client's, and the broker's."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pamqp import commands

from gateway.frontends.rabbitmq.channel import KeptPublish, RelayedChannel
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.relayed import FrameReader, RelayedContent

[FRAME] = FrameReader().feed(method_frame(1, commands.Basic.Publish(routing_key="orders")))
PUBLISH = commands.Basic.Publish(exchange="", routing_key="orders")


class TestTwoCounts(RuleBasedStateMachine):
    """
    A client that confirms from some publish on, a broker that confirms in any way and is lost at
    any time, a pair that confirms what the broker didn't: each publish is told of once, by its tag.
    """

    def __init__(self) -> None:
        super().__init__()
        self.channel = RelayedChannel(1)
        self.published = 0  # by the client, since its confirm.select
        self.told: list[int] = []
        self.upstream = 0  # the broker's count
        self.at_broker: set[int] = set()
        self.at_pair: list[KeptPublish] = []

    @rule()
    def select(self) -> None:
        self.channel.client_confirms = True

    @rule()
    def publish(self) -> None:
        kept = self.channel.counted(RelayedContent(FRAME), PUBLISH, 0.0)
        self.published += self.channel.client_confirms
        assert kept.client_tag == (self.published if self.channel.client_confirms else None)
        self.channel.keep(kept)
        self.upstream += 1
        self.at_broker.add(self.upstream)

    @rule(data=st.data(), multiple=st.booleans(), accepted=st.booleans())
    def confirm(self, data: st.DataObject, multiple: bool, accepted: bool) -> None:
        if not self.at_broker:
            return
        tag = data.draw(st.sampled_from(sorted(self.at_broker)))
        own = {each for each in self.at_broker if each == tag or (multiple and each < tag)}
        self.at_broker -= own
        found = self.channel.settle(tag, multiple=multiple)
        assert len(found) == len(own)
        self.hear(self.channel.confirms(found, accepted=accepted))

    @rule()
    def lose(self) -> None:
        self.at_broker.clear()
        self.upstream = 0
        left = self.channel.lose()
        self.channel.with_pair += len(left)
        self.at_pair += left

    @rule()
    def confirm_by_pair(self) -> None:
        if self.at_pair:
            kept = self.at_pair.pop(0)
            self.channel.with_pair -= 1
            self.hear(self.channel.confirms([kept], accepted=True))

    def hear(self, data: bytes) -> None:
        for frame in FrameReader().feed(data):
            method = frame.method()
            if method.multiple:
                told = set(self.told)
                self.told += [n for n in range(1, method.delivery_tag + 1) if n not in told]
            else:
                self.told.append(method.delivery_tag)

    @invariant()
    def each_publish_is_told_of_once(self) -> None:
        open_tags = [each.client_tag for each in (*self.channel.by_tag.values(), *self.at_pair)]
        left = {tag for tag in open_tags if tag is not None}
        assert sorted(self.told) == sorted(set(range(1, self.published + 1)) - left)


TestTwoCounts = TestTwoCounts.TestCase
