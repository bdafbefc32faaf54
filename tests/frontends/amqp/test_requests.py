"""Links of requests and replies: the limits of a client's pending requests and replies."""

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.domain.message import Message
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import build_request, parse_reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import request_of
from tests.frontends.amqp.conftest import Faulty
from tests.frontends.rest_client import ORDERS

ADDRESS = "orders/$management"
SHOW = ops.Peek(from_sequence=1, limit=1)
NO_LOCK = ops.RenewLocks(tokens=("6ba7b810-9dad-11d1-80b4-00c04fd430c8",))


@attrs.define(eq=False)
class Slow(Faulty):
    """A namespace that shows messages only when the test allows, and counts the requests."""

    may: trio.Event = attrs.field(factory=trio.Event)
    begun: int = 0
    under_way: int = 0
    most: int = 0

    async def peek(self, entity, *, from_sequence=0, limit=1):
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.may.wait()
            return await self.inner.peek(entity, from_sequence=from_sequence, limit=limit)
        finally:
            self.under_way -= 1


async def slow(house):
    broker = Slow(inner=house.broker)
    await house.nursery.start(broker.run)
    house.frontend = attrs.evolve(house.frontend, broker=broker)
    return broker


async def replies_to(sdk, name, credit):
    target = amqp.Terminus(address=name)
    link = await sdk.attached(we_send=False, address=ADDRESS, target=target)
    if credit:
        sdk.engine.grant(link, credit)
    return link


def ask(sdk, link, operation, number, reply_to="here", seconds=None):
    asked = request_of(operation, request_id=str(number), reply_to=reply_to, timeout=seconds)
    return sdk.engine.send(link, b"%d" % number, build_request(asked))


async def reply(sdk, link):
    return parse_reply((await sdk.delivery(link)).payload)


async def test_few_requests_of_a_connection_are_answered_at_the_same_time(house, autojump_clock):
    house.change(max_requests=3)
    broker = await slow(house)
    sdk = await house.client()
    replies = await replies_to(sdk, "here", 20)
    links = [await sdk.attached(we_send=True, address=ADDRESS) for _ in range(2)]

    for number in range(20):
        ask(sdk, links[number % 2], SHOW, number)
    await wait_all_tasks_blocked()
    begun = broker.begun
    broker.may.set()
    answered = {(await reply(sdk, replies)).id for _ in range(20)}

    assert begun == broker.most == 3
    assert answered == {str(number) for number in range(20)}


async def test_large_replies_wait_for_a_client_that_gives_no_credit(house, autojump_clock):
    await house.broker.send(ORDERS, [Message(body=bytes(700_000))])
    broker = await slow(house)
    broker.may.set()
    sdk = await house.client()
    replies = await replies_to(sdk, "here", 0)
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    for number in range(40):
        ask(sdk, requests, SHOW, number)
    await wait_all_tasks_blocked()
    begun = broker.begun
    sdk.engine.grant(replies, 40)
    answered = {(await reply(sdk, replies)).id for _ in range(40)}

    assert begun <= 10  # a megabyte, and the requests under way then
    assert answered == {str(number) for number in range(40)}


async def test_small_replies_do_not_wait_behind_large_ones(house, autojump_clock):
    await house.broker.send(ORDERS, [Message(body=bytes(700_000))])
    sdk = await house.client()
    owed = await replies_to(sdk, "owed", 0)
    small = await replies_to(sdk, "small", 1)
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    for number in range(20):
        ask(sdk, requests, SHOW, number, "owed")
    await wait_all_tasks_blocked()
    ask(sdk, requests, NO_LOCK, 20, "small")

    assert (await reply(sdk, small)).condition == "com.microsoft:message-lock-lost"
    assert not [each for each in sdk.told if getattr(each, "link", None) == owed]


async def test_a_reply_is_sent_to_the_address_that_its_request_names_in_any_session(house):
    # RequestResponseLink of azure-servicebus 1.2.18 for Java begins a session for each link.
    sdk = await house.client()
    of_session = sdk.session
    sdk.session = sdk.engine.begin()
    replies = await replies_to(sdk, "here", 1)
    sdk.session = of_session
    await replies_to(sdk, "elsewhere", 1)
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    ask(sdk, requests, NO_LOCK, 7)

    with trio.fail_after(5):
        assert (await reply(sdk, replies)).id == "7"


async def test_a_reply_is_sent_in_the_session_of_its_request_where_addresses_are_the_same(house):
    sdk = await house.client()
    first = await replies_to(sdk, "here", 1)
    sdk.session = sdk.engine.begin()
    second = await replies_to(sdk, "here", 1)
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    ask(sdk, requests, NO_LOCK, 7)
    with trio.fail_after(5):
        got = await sdk.until(amqp.TransferReceived)

    assert got.link == second != first


async def test_a_reply_without_an_address_stays_in_its_session(house):
    sdk = await house.client()
    await replies_to(sdk, "here", 1)
    sdk.session = sdk.engine.begin()
    second = await replies_to(sdk, "there", 1)
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    ask(sdk, requests, NO_LOCK, 7, reply_to="unknown")
    with trio.fail_after(5):
        got = await sdk.until(amqp.TransferReceived)

    assert got.link == second


async def test_credit_is_for_requests_that_are_not_under_way(house, autojump_clock):
    house.change(max_requests=100)
    broker = await slow(house)
    sdk = await house.client()
    replies = await replies_to(sdk, "here", 1000)
    requests = await sdk.attached(we_send=True, address=ADDRESS)
    await sdk.until(amqp.LinkFlow, lambda event: event.link == requests)

    for number in range(80):
        ask(sdk, requests, NO_LOCK if number < 10 else SHOW, number)
    for _ in range(10):
        await reply(sdk, replies)
    await wait_all_tasks_blocked()
    left = sdk.engine.credit(requests)
    broker.may.set()
    for _ in range(70):
        await reply(sdk, replies)
    await wait_all_tasks_blocked()

    assert left == 20
    assert 50 < sdk.engine.credit(requests) <= 100


async def test_a_request_that_was_not_begun_when_its_client_goes_is_not_done(house, autojump_clock):
    house.change(max_requests=1)
    broker = await slow(house)
    sdk = await house.client()
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    for number in range(5):
        ask(sdk, requests, SHOW, number)
    await wait_all_tasks_blocked()
    sdk.engine.detach(requests)
    await wait_all_tasks_blocked()
    broker.may.set()
    await wait_all_tasks_blocked()

    assert broker.begun == 1


async def test_a_peek_stops_when_its_client_goes(house, autojump_clock):
    broker = await slow(house)
    sdk = await house.client()
    requests = await sdk.attached(we_send=True, address=ADDRESS)

    for number in range(5):
        ask(sdk, requests, SHOW, number)
    await wait_all_tasks_blocked()
    under_way = broker.under_way
    await sdk.connection.close()
    await wait_all_tasks_blocked()

    assert (under_way, broker.under_way) == (5, 0)


async def test_the_time_that_a_client_waits_begins_when_it_asks(house, autojump_clock):
    house.change(max_requests=1)
    await slow(house)
    sdk = await house.client()
    replies = await replies_to(sdk, "here", 2)
    requests = await sdk.attached(we_send=True, address=ADDRESS)
    began = trio.current_time()

    ask(sdk, requests, SHOW, 0, seconds=5)
    await wait_all_tasks_blocked()
    ask(sdk, requests, SHOW, 1, seconds=8)
    conditions = [(await reply(sdk, replies)).condition for _ in range(2)]

    assert conditions == ["com.microsoft:timeout"] * 2
    assert trio.current_time() - began < 8.5


async def test_a_token_is_taken_while_requests_wait(house, autojump_clock):
    house.change(max_requests=1)
    await slow(house)
    sdk = await house.client()
    requests = await sdk.attached(we_send=True, address=ADDRESS)
    for number in range(5):
        ask(sdk, requests, SHOW, number)
    await wait_all_tasks_blocked()

    answer = await sdk.put_token("sb://localhost/orders")

    assert answer.properties["status-code"].value == 202


async def test_a_request_to_cbs_is_no_larger_than_a_token_may_be(house, autojump_clock):
    stranger = await house.connect().open()
    link = await stranger.attached(we_send=True, address="$cbs")

    outcome = await stranger.send(link, Message(body=bytes(70_000)))

    assert outcome.error.condition == "amqp:link:message-size-exceeded"
