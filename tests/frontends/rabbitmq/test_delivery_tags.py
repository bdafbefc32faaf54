"""The two counts of a channel's deliveries, against a broker that is lost at any time."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pamqp import commands

from gateway.frontends.rabbitmq.delivery_tags import DeliveryTags
from gateway.wire.rabbitmq.frames import method_frame
from gateway.wire.rabbitmq.relayed import FrameReader


def frame(method):
    [found] = FrameReader().feed(method_frame(1, method))
    return found


class TestSeams(RuleBasedStateMachine):
    """
    The client settles by its own count, one by one, up to a tag, or all. Naively: what it settles
    is settled at the broker, unless the broker was lost since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tags = DeliveryTags()
        self.upstream = 0  # the broker's count
        self.at_broker: set[int] = set()  # without a settlement, by its count
        self.delivered = 0  # the client's count
        # Deliveries of this connection without a settlement: by the client's count, the broker's.
        self.expected: dict[int, int] = {}
        self.lost: set[int] = set()  # without a settlement, by the client's count

    @rule(tag=st.text(max_size=20))
    def deliver(self, tag: str) -> None:
        self.upstream += 1
        self.delivered += 1
        self.at_broker.add(self.upstream)
        self.expected[self.delivered] = self.upstream
        delivery = frame(commands.Basic.Deliver(tag, self.upstream, True, "", "orders"))
        [told] = FrameReader().feed(self.tags.delivered(delivery))
        assert told.method().delivery_tag == self.delivered
        assert told.method().consumer_tag == tag
        assert told.method().redelivered

    @rule()
    def lose(self) -> None:
        self.tags.lose()
        self.lost |= set(self.expected)
        self.expected.clear()
        self.at_broker.clear()
        self.upstream = 0

    @rule(data=st.data(), kind=st.sampled_from(["ack", "nack", "reject"]))
    def settle_one(self, data: st.DataObject, kind: str) -> None:
        known = sorted({*self.expected, *self.lost})
        if known:
            tag = data.draw(st.sampled_from(known))
            methods = {
                "ack": commands.Basic.Ack(tag),
                "nack": commands.Basic.Nack(tag, requeue=True),
                "reject": commands.Basic.Reject(tag, requeue=True),
            }
            self.expected.pop(tag, None)
            self.lost.discard(tag)
            self.settle(methods[kind])

    @rule(data=st.data())
    def settle_up_to(self, data: st.DataObject) -> None:
        known = sorted({*self.expected, *self.lost})
        if known:
            tag = data.draw(st.sampled_from(known))
            self.lost = {each for each in self.lost if each > tag}
            self.expected = {n: each for n, each in self.expected.items() if n > tag}
            self.settle(commands.Basic.Ack(tag, multiple=True))

    @rule()
    def settle_all(self) -> None:
        self.lost.clear()
        self.expected.clear()
        self.settle(commands.Basic.Ack(0, multiple=True))

    @rule(beyond=st.integers(1, 5))
    def a_tag_that_was_never_delivered_is_unknown(self, beyond: int) -> None:
        settlement = frame(commands.Basic.Ack(self.delivered + beyond))
        assert self.tags.is_unknown(settlement)
        [told] = FrameReader().feed(self.tags.settled(settlement))
        assert told.method().delivery_tag > self.upstream
        text = f"PRECONDITION_FAILED - unknown delivery tag {told.method().delivery_tag}"
        close = self.tags.of_client(commands.Channel.Close(406, text, 60, 80))
        assert close.reply_text.endswith(f" {self.delivered + beyond}")

    def settle(self, method: commands.Basic.Ack) -> None:
        settlement = frame(method)
        assert not self.tags.is_unknown(settlement)
        for passed in FrameReader().feed(self.tags.settled(settlement)):
            at = passed.method()
            assert type(at) is type(method)
            assert getattr(at, "requeue", False) == getattr(method, "requeue", False)
            if getattr(at, "multiple", False):
                up_to = at.delivery_tag or self.upstream
                self.at_broker = {each for each in self.at_broker if each > up_to}
            else:
                self.at_broker.remove(at.delivery_tag)  # once only: else it's an error there

    @invariant()
    def the_broker_has_what_the_client_has(self) -> None:
        assert self.at_broker == set(self.expected.values())


TestSeams = TestSeams.TestCase
