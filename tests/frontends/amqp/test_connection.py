"""A client's connection as a whole: some events end it, and others don't."""

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.message import Message
from gateway.frontends.amqp.client import MOST_BEFORE_TOKEN, pads_frames
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.message import encode_message
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import SASL_HEADER
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import ORDERS
from tests.harness.faults import Hang, Operation


@attrs.frozen(eq=False)
class Deaf(trio.abc.Stream):
    """A client's stream that brings nothing while the client is `deaf`."""

    inner: trio.abc.Stream
    hears: trio.Event = attrs.field(factory=trio.Event)
    deaf: list[bool] = attrs.field(factory=list)
    has_ended: trio.Event = attrs.field(factory=trio.Event)

    async def receive_some(self, max_bytes=None):
        data = await self.inner.receive_some(max_bytes)
        if not data:
            self.has_ended.set()
        if self.deaf:
            await self.hears.wait()
        return data

    async def send_all(self, data):
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self):
        await self.inner.aclose()


async def deaf_client(house):
    """A client of that house that may be made deaf, and its stream."""
    ours, theirs = trio.testing.memory_stream_pair()
    house.nursery.start_soon(house.frontend.serve_connection, theirs)
    stream = Deaf(ours)
    sdk = Sdk.on(stream)
    house.nursery.start_soon(sdk.run)
    await (await sdk.open()).put_token()
    return sdk, stream


async def closed(sdk):
    return (await sdk.until(amqp.ConnectionClosed)).error


@pytest.mark.parametrize(
    ("terminus", "condition"),
    [
        (amqp.Terminus(dynamic=True), "amqp:not-implemented"),
        (amqp.Terminus(address=""), "amqp:not-allowed"),
        (amqp.Terminus(address="a b"), "amqp:not-allowed"),
        (None, "amqp:not-allowed"),
    ],
)
async def test_an_address_that_names_nothing_is_refused(sdk, terminus, condition, autojump_clock):
    error = await sdk.refusal(we_send=True, address="x", target=terminus)

    assert error.condition == condition


async def test_a_receiver_that_browses_is_refused(sdk, autojump_clock):
    """
    As of a QueueBrowser: Qpid JMS, AmqpConsumerBuilder.createSource. It would lock what it browses.
    """
    browser = amqp.Terminus(address="orders", copies=True)

    error = await sdk.refusal(we_send=False, address="orders", source=browser)

    assert error.condition == "amqp:not-implemented"


@pytest.mark.parametrize("has_shown_a_key", [False, True])
async def test_a_client_that_has_shown_no_key_takes_little_memory(
    has_shown_a_key, house, autojump_clock
):
    """The links of tokens take messages of several frames, of which the last ones may not come."""
    house.frontend = attrs.evolve(house.frontend, max_partial_unknown=10_000)
    house.change(engine=EngineOptions(max_frame_size=512))
    sdk = await house.connect().open()
    if has_shown_a_key:
        await sdk.put_token()
    link = await sdk.attached(we_send=True, address="$cbs")
    await sdk.until(amqp.LinkFlow, lambda event: event.link == link)

    sdk.engine.send(link, b"large", bytes(20_000))
    await trio.testing.wait_all_tasks_blocked()

    ends = [event.error for event in sdk.told if isinstance(event, amqp.ConnectionClosed)]
    assert [error.condition for error in ends] == (
        [] if has_shown_a_key else ["amqp:resource-limit-exceeded"]
    )


MIB = 1024 * 1024
LARGE = Message(body=bytes(MIB - 1000))


@attrs.frozen(eq=False)
class Slow(trio.abc.Stream):
    """A client's stream that takes 64 KiB a second."""

    inner: trio.abc.Stream

    async def receive_some(self, max_bytes=None):
        return await self.inner.receive_some(max_bytes)

    async def send_all(self, data):
        for at in range(0, len(data), 8192):
            await trio.sleep(len(data[at : at + 8192]) / 65536)
            await self.inner.send_all(data[at : at + 8192])

    async def wait_send_all_might_not_block(self):
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self):
        await self.inner.aclose()


@pytest.mark.slow
async def test_large_messages_over_a_slow_network_are_accepted(house, autojump_clock):
    """There is always a frame and a message in part, and never the same ones for long."""
    ours, theirs = trio.testing.memory_stream_pair()
    house.nursery.start_soon(house.frontend.serve_connection, theirs)
    sdk = Sdk.on(Slow(ours))
    house.nursery.start_soon(sdk.run)
    await (await sdk.open()).put_token()
    links = [await sdk.sender() for _ in range(4)]
    began = trio.current_time()

    deliveries = [sdk.transfer(link, LARGE) for _ in range(16) for link in links]
    outcomes = [await sdk.outcome(delivery) for delivery in deliveries]

    assert outcomes == [amqp.ACCEPTED] * 64
    assert trio.current_time() - began > 4 * house.frontend.options.engine.partial_timeout


async def test_a_frame_that_never_ends_ends_its_connection_only(house, autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()
    house.nursery.start_soon(house.frontend.serve_connection, theirs)
    slow = Sdk.on(ours)
    house.nursery.start_soon(slow.run)
    await (await slow.open()).put_token()
    link = await slow.sender()
    other = await house.client()
    other_link = await other.sender()
    accepted = 0

    async def drip():
        slow.connection.be_silent()
        await ours.send_all((60_000).to_bytes(4) + b"\x02\0\0\0")
        while True:
            await trio.sleep(1)
            await ours.send_all(b"\0")

    async def send_on():
        nonlocal accepted
        while True:
            assert await other.send(other_link, Message()) == amqp.ACCEPTED
            accepted += 1
            await trio.sleep(7)

    for _ in range(3):
        assert await slow.send(link, Message()) == amqp.ACCEPTED
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        nursery.start_soon(send_on)
        began = trio.current_time()
        error = await closed(slow)
        nursery.cancel_scope.cancel()

    assert error.condition == "amqp:resource-limit-exceeded"
    assert "a frame or a message wasn't complete after 240" in error.description
    assert 240 <= trio.current_time() - began <= 480
    assert accepted >= 24
    assert len(await house.broker.peek(ORDERS, limit=100)) == 3 + accepted


async def test_garbage_ends_its_connection_only(house, sdk, autojump_clock):
    link = await sdk.sender()
    ours, theirs = trio.testing.memory_stream_pair()
    house.nursery.start_soon(house.frontend.serve_connection, theirs)

    await ours.send_all(SASL_HEADER + b"\xff" * 1000)
    while await ours.receive_some():
        await trio.lowlevel.checkpoint()

    assert await sdk.send(link, Message()) == amqp.ACCEPTED


async def test_a_drain_closes_an_idle_connection(house, sdk, autojump_clock):
    await sdk.sender()

    house.frontend.drain.begin()
    error = await closed(sdk)

    assert error.condition == "amqp:connection:forced"


async def test_a_drain_waits_for_what_is_under_way(house, sdk, autojump_clock):
    link = await sdk.sender()
    house.breaks(Operation.SEND, Hang(seconds=5))
    house.faulty.latency = lambda: 1.0
    delivery = sdk.transfer(link, Message(message_id="a"))
    house.faulty.fault = lambda operation, entity: None
    await trio.testing.wait_all_tasks_blocked()

    house.frontend.drain.begin()
    outcome = await sdk.outcome(delivery)
    error = await closed(sdk)

    assert outcome == amqp.ACCEPTED
    assert error.condition == "amqp:connection:forced"


async def test_a_drain_leaves_nothing_unanswered_of_clients_that_wait_for_their_answers(
    house, sdk, autojump_clock
):
    house.faulty.latency = lambda: 0.05
    link = await sdk.sender()
    unanswered = set()
    payload = encode_message(Message())

    async def send_on(number):
        await trio.sleep(0.01 * number)
        while (delivery := sdk.engine.send(link, b"%d" % number, payload)) is not None:
            unanswered.add(delivery)
            await sdk.outcome(delivery)
            unanswered.remove(delivery)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(send_on, number)
        await trio.sleep(3)
        house.frontend.drain.begin()
        await closed(sdk)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert not unanswered


async def to_a_sender(sdk, after_step):
    """Return a link to send on, as an SDK makes it; call `after_step` with the number of each."""
    await after_step(0)
    await sdk.open()
    await after_step(1)
    await sdk.put_token()
    await after_step(2)
    link = await sdk.sender()
    await after_step(3)
    return link


@pytest.mark.parametrize("begun", range(4))
async def test_a_client_that_begins_a_connection_may_send_on_it_before_a_drain_closes_it(
    house, begun, autojump_clock
):
    """Node's SDK sends as soon as it has a link, and waits for the answer until its timeout."""
    sdk = house.connect()

    async def after_step(number):
        if number == begun:
            house.frontend.drain.begin()
        await trio.sleep(0.2)

    link = await to_a_sender(sdk, after_step)
    outcome = await sdk.send(link, Message())
    error = await closed(sdk)

    assert outcome == amqp.ACCEPTED
    assert error.condition == "amqp:connection:forced"


@pytest.mark.parametrize(("after", "latency"), [(0.0, 0.0), (0.2, 0.0), (0.2, 0.25)])
async def test_a_link_that_is_attached_in_a_drain_may_send_before_the_close(
    house, sdk, after, latency, autojump_clock
):
    """The connection is silent for the sake of another link."""
    await sdk.sender()
    await trio.sleep(10)
    house.faulty.latency = lambda: latency

    house.frontend.drain.begin()
    await trio.sleep(after)
    link = await sdk.sender()
    outcome = await sdk.send(link, Message())
    error = await closed(sdk)

    assert outcome == amqp.ACCEPTED
    assert error.condition == "amqp:connection:forced"


async def test_a_drain_ends_also_for_a_client_that_attaches_again_and_again(
    house, sdk, autojump_clock
):
    async def attach_on():
        while True:
            await sdk.sender()
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attach_on)
        await trio.sleep(3)
        house.frontend.drain.begin()
        with trio.fail_after(4):
            error = await closed(sdk)
        nursery.cancel_scope.cancel()

    assert error.condition == "amqp:connection:forced"


async def test_a_drain_closes_a_connection_that_has_been_without_links_at_once(
    house, autojump_clock
):
    sdk = await house.connect().open()
    await trio.sleep(1)

    house.frontend.drain.begin()
    with trio.fail_after(0.1):
        error = await closed(sdk)

    assert error.condition == "amqp:connection:forced"


@pytest.mark.parametrize("age", [0, 10])
@pytest.mark.parametrize("said", [b"", b"AMQP\x03\x01\x00\x00"], ids=["nothing", "SASL"])
async def test_a_drain_waits_for_no_client_that_has_not_opened_its_connection(
    house, said, age, autojump_clock
):
    """Node's SDK leaves such a connection behind when it connects again as the old one ends."""
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(said)
    with trio.fail_after(age + 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.frontend.serve_connection, theirs)
            await trio.sleep(age)
            house.frontend.drain.begin()


async def test_the_close_is_followed_by_the_end_of_the_stream(house, autojump_clock):
    """Node's SDK connects again after the close, and the end of the old stream must not be late."""
    sdk, stream = await deaf_client(house)
    sdk.connection.be_silent()  # the client answers no close

    house.frontend.drain.begin()
    with trio.fail_after(1):
        assert (await closed(sdk)).condition == "amqp:connection:forced"
        await stream.has_ended.wait()


async def test_a_slow_send_holds_up_no_other_answer_in_a_drain(house, sdk, autojump_clock):
    links = [await sdk.sender(), await sdk.sender()]
    house.faulty.latency = iter([10.0, 0.1, 0.0, 0.0]).__next__  # there and back
    slow = sdk.transfer(links[0], Message())
    await trio.testing.wait_all_tasks_blocked()
    quick = sdk.transfer(links[1], Message())

    house.frontend.drain.begin()
    with trio.fail_after(2):
        assert await sdk.outcome(quick) == amqp.ACCEPTED

    assert await sdk.outcome(slow) == amqp.ACCEPTED


@pytest.mark.parametrize(("settled", "kept"), [(False, 0), (True, 1)])
async def test_a_message_that_comes_too_late_is_sent_only_if_its_client_forgets_it(
    house, settled, kept, autojump_clock
):
    sdk, stream = await deaf_client(house)
    link = await sdk.sender()

    stream.deaf.append(True)
    house.frontend.drain.begin()
    await trio.sleep(1)
    sdk.transfer(link, Message(), settled=settled)
    await trio.testing.wait_all_tasks_blocked()
    stream.hears.set()
    await closed(sdk)
    await trio.testing.wait_all_tasks_blocked()

    assert len(await house.broker.peek(ORDERS)) == kept


async def test_a_drain_ends_also_for_a_client_that_never_stops(house, sdk, autojump_clock):
    house.faulty.latency = lambda: 0.1
    link = await sdk.sender()

    async def send_on():
        while True:
            sdk.transfer(link, Message())
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_on)
        await trio.sleep(3)
        house.frontend.drain.begin()
        with trio.fail_after(30):
            error = await closed(sdk)
        nursery.cancel_scope.cancel()

    assert error.condition == "amqp:connection:forced"


async def test_a_settlement_that_comes_while_the_gateway_closes_is_done(house, autojump_clock):
    """The client hasn't received the close yet: it gives credit, and settles its deliveries."""
    await house.broker.send(ORDERS, [Message(message_id=each) for each in "ab"])
    sdk, stream = await deaf_client(house)
    link = await sdk.receiver(credit=1)
    transfer = await sdk.delivery(link)

    stream.deaf.append(True)
    house.frontend.drain.begin()
    await trio.testing.wait_all_tasks_blocked()
    sdk.engine.grant(link, 1)
    await trio.testing.wait_all_tasks_blocked()
    sdk.engine.settle(transfer.delivery, amqp.ACCEPTED)
    await trio.testing.wait_all_tasks_blocked()
    stream.hears.set()
    error = await closed(sdk)

    assert error.condition == "amqp:connection:forced"
    (left,) = await house.broker.peek(ORDERS, limit=2)
    assert left.message.message_id == "b"


async def test_a_connection_without_links_is_closed_after_a_while(house, autojump_clock):
    sdk = await house.connect().open()
    began = trio.current_time()

    error = await closed(sdk)

    assert error.condition == "amqp:connection:forced"
    assert 299 < trio.current_time() - began < 301


async def test_a_connection_with_a_link_stays(sdk, autojump_clock):
    link = await sdk.sender()

    await trio.sleep(3000)

    assert await sdk.send(link, Message()) == amqp.ACCEPTED


async def test_a_client_that_attaches_links_and_shows_no_token_is_closed(house, autojump_clock):
    sdk = await house.connect().open()
    for _ in range(MOST_BEFORE_TOKEN):
        assert (
            await sdk.refusal(we_send=True, address="orders")
        ).condition == "amqp:unauthorized-access"
    sdk.attach(we_send=True, address="orders")

    error = await closed(sdk)

    assert error.condition == "amqp:resource-limit-exceeded"
    assert "100 links" in error.description


async def test_a_client_with_a_token_attaches_any_number_of_links(house, autojump_clock):
    sdk = await house.client()
    for _ in range(MOST_BEFORE_TOKEN + 1):
        sdk.engine.detach(await sdk.sender())

    assert await sdk.sender()


async def test_links_come_and_go(house, sdk, autojump_clock):
    for _ in range(1001):  # more than there may be at once
        sdk.engine.detach(await sdk.attached(we_send=True, address="orders"))

    assert await sdk.send(await sdk.sender(), Message()) == amqp.ACCEPTED


async def test_a_cancelled_connection_ends_at_once(house, autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.frontend.serve_connection, theirs)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(b"x")


@pytest.mark.parametrize(
    ("product", "version", "padded"),
    [
        ("azsdk-python-servicebus", "7.14.3", True),
        ("azsdk-python-servicebus", "7.15.0", False),
        ("azsdk-python-servicebus", "8.0.0b1", False),
        ("azsdk-python-servicebus", None, True),
        ("MSJSClient", "7.9.5", False),
        (None, None, False),
    ],
)
def test_old_clients_get_the_nulls_at_the_end_of_frames(product, version, padded):
    assert pads_frames({"product": product, "version": version}) is padded


async def test_messages_of_one_client_reach_another(house, sdk, autojump_clock):
    other = await house.client()
    link = await other.receiver(credit=10)

    await sdk.send(await sdk.sender(), Message(message_id="a"))
    await other.settle(await other.delivery(link), amqp.ACCEPTED)

    assert await house.broker.peek(ORDERS) == []


async def test_a_client_is_told_the_name_of_the_namespace(house, autojump_clock):
    house.change(namespace="east")
    sdk = house.connect()

    sdk.engine.open()
    opened = await sdk.until(amqp.ConnectionOpened)

    assert opened.container_id == "east"
