"""The limits of one client, with each protocol's own error; others aren't touched."""

import json
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.access import AccessPolicy, ClientLimit, Right
from gateway.domain.message import Message
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.amqp.pending import (
    MUCH,
    QUICK,
    SLOW,
    SMALLEST_PIECE,
    HeldBackStream,
    Pending,
)
from gateway.frontends.auth import EMULATOR_POLICY, Authorizer
from gateway.net.clients import MOST_PEEKS, PEEK_PATIENCE, ClientOptions, Clients
from gateway.net.turns import BRIEF, LONGEST, RECENT
from gateway.net.visits import Visits, acquire_turn, record_authorized
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import Reply, build_request, parse_reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import request_of
from gateway.wire.amqp.sasl import Credentials
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.sas import sign_sas
from gateway.wire.storage_queue import operations
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.amqp.transactions import LIMIT, ROLLBACK, condition, controller_of
from tests.frontends.limited_site import SEND, Site, beside_another, open_site
from tests.frontends.rest_client import (
    KEY,
    ORDERS,
    POLICIES,
    wall_clock,
)
from tests.frontends.storage_client import ACCOUNT, code, open_client

PEEK = f"{SEND}?limit=1"


def check_throttled(answer: Response) -> None:
    assert answer.status == 503
    assert answer.headers.get("Retry-After") == "10"
    assert b"50002" in answer.body


async def test_requests_beyond_the_limit_of_a_credential_are_throttled_over_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_requests=2) as site, trio.open_nursery() as nursery:
        site.broker.takes = 10.0
        answers: list[Response] = []

        async def send(policy: str) -> None:
            async with site.rest(policy) as client:
                answers.append(await client.ask("POST", SEND))

        for _ in range(2):
            nursery.start_soon(send, "Send")
        await wait_all_tasks_blocked()
        async with site.rest("Send", host="192.0.2.2") as same:
            check_throttled(await same.ask("POST", SEND))
        async with site.rest("Manage") as other:
            assert (await other.ask("POST", SEND)).status == 201
        await trio.sleep(1)
        async with site.rest("Send") as same:
            assert (await same.ask("POST", SEND)).status == 201  # the first two are answered

        assert site.refused == {("Send", "requests"): 1}
    assert [answer.status for answer in answers] == [201, 201]


async def test_connections_beyond_the_limit_of_a_credential_are_throttled_over_rest(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_connections=1) as site:
        async with site.rest("Send") as first:
            assert (await first.ask("POST", SEND)).status == 201
            async with site.rest("Send") as second:
                check_throttled(await second.ask("POST", SEND))
            async with site.rest("Manage") as other:
                assert (await other.ask("POST", SEND)).status == 201
            assert (await first.ask("POST", SEND)).status == 201
        async with site.rest("Send") as later:
            assert (await later.ask("POST", SEND)).status == 201

        assert site.refused == {("Send", "connections"): 1}


async def test_a_large_batch_over_rest_gives_way_to_a_light_client_and_stays_whole(
    autojump_clock: MockClock,
) -> None:
    batch = json.dumps([{"Body": "of the batch"}] * 1000).encode()
    form = "application/vnd.microsoft.servicebus.json"
    async with open_site() as site, trio.open_nursery() as nursery:
        site.broker.takes = BRIEF / 2
        sends = True

        async def send() -> None:
            async with site.rest("Manage") as light:
                while sends:
                    assert (await light.ask("POST", SEND)).status == 201

        nursery.start_soon(send)
        async with site.rest("Send") as heavy:
            await trio.sleep(BRIEF)
            before = len(site.broker.steps)
            assert (await heavy.ask("POST", SEND, batch, Content_Type=form)).status == 201
            sends = False

        assert site.broker.steps.index(1000) - before >= 20  # a slice has 50 messages


async def test_messages_beyond_the_limit_are_rejected_as_server_busy_over_amqp(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_requests=3) as site:
        site.broker.takes = 10.0
        (one, link), (two, other) = await site.sender(), await site.sender()

        taken = [one.transfer(link, Message(body=b"x")) for _ in range(3)]
        await wait_all_tasks_blocked()
        refused = await two.send(other, Message(body=b"x"))
        outcomes = [await one.outcome(each) for each in taken]
        again = await two.send(other, Message(body=b"x"))

        assert isinstance(refused, amqp.Rejected)
        assert refused.error is not None
        assert refused.error.condition == "com.microsoft:server-busy"
        assert "50002" in (refused.error.description or "")
        assert all(isinstance(each, amqp.Accepted) for each in [*outcomes, again])


async def test_clients_without_credentials_count_by_their_addresses_over_amqp(
    autojump_clock: MockClock,
) -> None:
    anybody = AccessPolicy(name="anybody", anonymous=True, rights=frozenset({Right.SEND}))
    async with open_site(max_requests=1) as site:
        site.broker.takes = 10.0
        clients = [
            await site.connect(host=host, policies=[*POLICIES, anybody]).open()
            for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2")
        ]
        (one, link), (same, its), (other, their) = [
            (client, await client.sender()) for client in clients
        ]

        taken = one.transfer(link, Message(body=b"x"))
        await wait_all_tasks_blocked()
        outcomes = [
            await same.send(its, Message(body=b"x")),
            await other.send(their, Message(body=b"x")),
            await one.outcome(taken),
        ]

        assert [type(each) for each in outcomes] == [amqp.Rejected, amqp.Accepted, amqp.Accepted]
        assert site.refused == {("192.0.2.1", "requests"): 1}


async def test_a_client_is_forgotten_when_nothing_of_it_is_left(autojump_clock: MockClock) -> None:
    clients = Clients(ClientOptions())
    visits = Visits(3600.0, clients)
    with visits.begin("192.0.2.1", "192.0.2.1:1"):
        record_authorized("first")  # the connection counts as one of this client
        record_authorized("second")
        turn = await acquire_turn(10)
        assert turn is not None
        first, second = clients.load("first"), clients.load("second")
        assert turn.line is second.line
        turn.release()
        assert clients.load("first") is first
        assert clients.load("second") is not second

    assert clients.load("first") is not first


async def test_a_connection_that_ends_with_messages_in_flight_gives_them_back(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_requests=3) as site:
        site.broker.takes = 1000.0
        one, link = await site.sender()
        for _ in range(3):
            one.transfer(link, Message(body=b"x"))
        await wait_all_tasks_blocked()

        site.scopes[0].cancel()
        await trio.sleep(100)
        site.broker.takes = 0.0
        two, other = await site.sender()

        assert isinstance(await two.send(other, Message(body=b"x")), amqp.Accepted)


async def test_bytes_beyond_the_limit_wait_over_amqp_whatever_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_bytes=3000) as site:
        site.broker.takes = 10.0
        (one, link), (two, other) = await site.sender(), await site.sender()

        one.transfer(link, Message(body=b"x" * 4000))
        await wait_all_tasks_blocked()
        two.transfer(other, Message(body=b"x" * 100))
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        late = two.transfer(other, Message(body=b"x" * 100))
        outcome = await two.outcome(late)

        assert isinstance(outcome, amqp.Accepted)
        # The request was read when the others were answered.
        assert trio.current_time() >= begun + 20
        assert not site.refused


async def test_bytes_of_open_transactions_count_whatever_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_site(max_bytes=3000) as site:
        (one, link), (two, other) = await site.sender(), await site.sender()
        (first, second) = await controller_of(one), await controller_of(two)
        held, late = await first.declare(), await second.declare()

        await first.send(link, held, "x" * 4000)
        refused = await second.send(other, late, "y")
        rolled_back = await second.discharge(late)
        await first.discharge(held)
        again = await second.declare()
        accepted = await second.send(other, again, "z" * 4000)
        site.scopes[1].cancel()  # with its transaction
        await trio.sleep(1)
        last = await first.send(link, await first.declare(), "x")

        assert condition(refused) == LIMIT
        assert condition(rolled_back) == ROLLBACK
        assert isinstance(accepted, amqp.TransactionalState)
        assert isinstance(last, amqp.TransactionalState)


async def test_a_client_has_few_answers_with_peeked_messages_under_way_over_amqp(
    autojump_clock: MockClock,
) -> None:
    async with open_site() as site:
        await site.broker.send(ORDERS, [Message(body=b"x" * 900_000)])
        for _ in range(MOST_PEEKS):
            deaf = await peeker(site, credit=0)  # the client takes no reply
            await deaf.ask()
            await deaf.ask()
        other = await peeker(site, credit=2)
        begun = trio.current_time()

        throttled = await other.reply()
        waited = trio.current_time() - begun
        site.scopes[0].cancel()
        answered = await other.reply()

        assert (throttled.status, waited) == (503, pytest.approx(PEEK_PATIENCE))
        assert answered.status == 200
        assert site.refused == {(EMULATOR_POLICY.name, "peeks"): 1}


@pytest.mark.parametrize("protocol", ["service-bus-http", "storage-queue", "amqp"])
async def test_a_peek_that_waits_for_its_client_to_read_has_no_turn(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with open_site() as site, open_client() as storage, trio.open_nursery() as nursery:
        await site.broker.send(ORDERS, [Message(body=b"x" * 900_000)])

        async def peek() -> None:
            """Peek, and never read the answer."""
            if protocol == "amqp":
                deaf = await peeker(site, credit=0)
                await deaf.ask()
                await deaf.ask()
            elif protocol == "storage-queue":
                with site.visit("192.0.2.1"):
                    await storage.do(operations.PeekMessages(queue="orders", limit=1))
                    await trio.sleep_forever()
            else:
                async with site.rest("Listen") as client:
                    assert (await client.ask("GET", PEEK)).status == 200
                    await trio.sleep_forever()

        for _ in range(MOST_PEEKS + 2):
            nursery.start_soon(peek)
        await trio.sleep(LONGEST / 2)
        names = {"amqp": EMULATOR_POLICY.name, "storage-queue": ACCOUNT}
        load = site.clients.load(names.get(protocol, "Listen"))

        assert load._peeks is not None
        assert load._peeks.statistics().tasks_waiting == 2
        assert load.line.is_idle
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", ["service-bus-http", "amqp"])
async def test_answers_of_one_client_that_were_read_together_are_built_one_after_another(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with open_site() as site, beside_another(site), trio.open_nursery() as nursery:
        await site.broker.send(ORDERS, [Message(body=b"x")])
        name = EMULATOR_POLICY.name if protocol == "amqp" else "Listen"
        busy = await site.clients.load(name).reading.acquire(0, site.clients.options.share)
        answered = 0

        async def peek() -> None:
            nonlocal answered
            if protocol == "amqp":
                await (await peeker(site, credit=1)).reply()
            else:
                async with site.rest("Listen") as client:
                    assert (await client.ask("GET", PEEK)).status == 200
            answered += 1

        for _ in range(MOST_PEEKS):
            nursery.start_soon(peek)
        await trio.sleep(LONGEST * 3)  # the turns of the requests don't count any more
        before = answered
        busy.release()
        await trio.sleep(LONGEST)

    assert (before, answered) == (0, MOST_PEEKS)


@pytest.mark.parametrize("protocol", ["service-bus-http", "amqp"])
async def test_a_peek_gives_way_to_a_light_client_before_it_is_read_and_before_it_is_answered(
    protocol: str, autojump_clock: MockClock
) -> None:
    async with open_site() as site, AsyncExitStack() as stack:
        await site.broker.send(ORDERS, [Message(body=b"x")])
        peek: Awaitable[Any]
        if protocol == "amqp":
            peek = (await peeker(site, credit=1)).reply()
        else:
            peek = (await stack.enter_async_context(site.rest("Listen"))).ask("GET", PEEK)
        await site.clients.load("light").line.acquire()
        began = trio.current_time()
        await peek

        assert trio.current_time() - began == pytest.approx(2 * BRIEF)


@pytest.mark.parametrize(("operation", "ways"), [("peek", 4), ("get", 2)])
async def test_a_large_answer_of_storage_queue_gives_way_to_a_light_client_between_its_slices(
    operation: str, ways: int, autojump_clock: MockClock
) -> None:
    """640,000 bytes of messages are three slices; a peek gives way before the first, too."""
    async with open_site() as site, open_client() as storage:
        await storage.put(*["x" * 40_000] * 16)
        with site.visit("192.0.2.1"):
            await site.clients.load("light").line.acquire()
            began = trio.current_time()
            if operation == "peek":
                await storage.do(operations.PeekMessages(queue="orders", limit=16))
            else:
                await storage.get(limit=16)

        assert trio.current_time() - began == pytest.approx(ways * BRIEF)


@attrs.define(eq=False)
class Peeker:
    """A client with links to the `$management` of orders, that peeks."""

    sdk: Sdk
    replies: amqp.LinkId
    requests: amqp.LinkId

    async def ask(self) -> None:
        operation = ops.Peek(from_sequence=1, limit=1)
        request = build_request(request_of(operation, request_id="7", reply_to="here"))
        await self.sdk.outcome(self.sdk.engine.send(self.requests, b"1", request))

    async def reply(self) -> Reply:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ask)
            return parse_reply((await self.sdk.delivery(self.replies)).payload)
        raise AssertionError("a delivery ends it")


async def peeker(site: Site, credit: int) -> Peeker:
    sdk = await site.connect().open()
    await sdk.put_token()
    address = "orders/$management"
    target = amqp.Terminus(address="here")
    replies = await sdk.attached(we_send=False, address=address, target=target)
    if credit:
        sdk.engine.grant(replies, credit)
    return Peeker(sdk, replies, await sdk.attached(we_send=True, address=address))


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
async def test_connections_beyond_the_limit_are_refused_as_busy_over_amqp(
    mechanism: str, autojump_clock: MockClock
) -> None:
    async with open_site(max_connections=1) as site:
        first = await site.connect().open()
        await first.put_token()

        if mechanism == "ANONYMOUS":
            second = await site.connect().open()
            told = await second.put_token()
            assert told.properties["status-code"].value == 503
            assert "50002" in told.properties["status-description"]
        else:
            plain = Credentials(mechanism=mechanism, user=POLICIES[0].name, password=KEY)
            closed = await site.connect(plain).until(amqp.ConnectionClosed)
            assert closed.error.condition == "amqp:internal-error"  # code 4: try again
        site.scopes[0].cancel()
        await trio.sleep(10)
        third = await site.connect().open()

        assert (await third.put_token()).properties["status-code"].value == 202


async def test_the_queue_service_says_that_the_server_is_busy(autojump_clock: MockClock) -> None:
    clients = Clients(ClientOptions(max_connections=1, max_requests=1))
    visits = Visits(3600.0, clients)
    async with open_client() as client:
        with visits.begin("192.0.2.1", "192.0.2.1:1"):
            await client.put("x")
            with visits.begin("192.0.2.1", "192.0.2.1:2"):
                refused = await client.ask(
                    "GET", f"{SEND}?peekonly=true", Authorization="SharedKey x:AAAA"
                )
                client.frontend.options = attrs.evolve(client.frontend.options, retry_for=1.0)
                with pytest.raises(Exception, match="50002"):
                    await client.put("x")

        assert refused.status == 403  # a refused credential counts for no client
        assert clients.refused == {(ACCOUNT, ClientLimit.CONNECTIONS): 1}
        assert code(refused) == "AuthenticationFailed"


async def test_the_admin_endpoint_counts_its_connections(autojump_clock: MockClock) -> None:
    async with open_site(max_connections=1) as site:
        authorizer = Authorizer(POLICIES, wall_clock=wall_clock)
        admin = AdminFrontend(broker=site.broker, authorizer=authorizer, wall_clock=wall_clock)
        expires = int(wall_clock().timestamp()) + 300
        token = sign_sas("http://localhost/", "Listen", KEY, expires)
        request = Request(
            method="GET", target="/scale/orders", headers=Headers.of({"Authorization": token})
        )
        with site.visits.begin("192.0.2.1", "192.0.2.1:1"):
            assert (await admin.handle(request)).status == 200
            with site.visits.begin("192.0.2.1", "192.0.2.1:2"):
                refused = await admin.handle(request)

        assert (refused.status, refused.headers.get("Retry-After")) == (503, "10")


async def test_the_names_of_refused_clients_are_bounded(autojump_clock: MockClock) -> None:
    clients = Clients(ClientOptions(max_connections=1))
    for number in range(100):
        clients.record_refused(f"client-{number}", ClientLimit.CONNECTIONS)

    assert len(clients.refused) <= 33
    assert sum(clients.refused.values()) == 100
    assert clients.refused["", ClientLimit.CONNECTIONS] == 68

    clients.record_refused("client-0", ClientLimit.REQUESTS)
    clients.record_refused("client-99", ClientLimit.REQUESTS)
    # 32 names at most, whatever the limits
    assert clients.refused["client-0", ClientLimit.REQUESTS] == 1
    assert clients.refused["", ClientLimit.REQUESTS] == 1


async def test_messages_of_a_link_keep_their_order_while_they_wait_for_their_turn(
    autojump_clock: MockClock,
) -> None:
    async with open_site(share=2) as site:
        one, link = await site.sender()
        site.broker.takes = 0.01

        async def disturb() -> None:
            async with site.rest("Send", host="192.0.2.2") as other:
                for _ in range(20):
                    assert (await other.ask("POST", SEND)).status == 201

        site.nursery.start_soon(disturb)
        await trio.sleep(0.005)
        sent = [one.transfer(link, Message(message_id=str(n), body=b"x")) for n in range(300)]
        outcomes = [await one.outcome(each) for each in sent]
        found = await site.broker.peek(ORDERS, limit=1000)

    assert all(isinstance(each, amqp.Accepted) for each in outcomes)
    own = [each.message.message_id or "" for each in found]
    assert [name for name in own if len(name) < 4] == [str(n) for n in range(300)]


async def test_a_client_with_many_connections_does_not_delay_another_one(
    autojump_clock: MockClock,
) -> None:
    async with open_site(share=4) as site, trio.open_nursery() as nursery:
        site.broker.takes = 0.05
        in_progress: list[float] = []

        async def send_on(policy: str) -> None:
            async with site.rest(policy) as client:
                while True:
                    assert (await client.ask("POST", SEND)).status == 201
                    in_progress.append(trio.current_time())

        nursery.start_soon(send_on, "Manage")
        await trio.sleep(0.01)
        for _ in range(100):
            nursery.start_soon(send_on, "Send")
        await trio.sleep(2)
        nursery.cancel_scope.cancel()

    # In each 50 ms one message of the single connection, and four of the other hundred.
    assert 150 < len(in_progress) < 250


async def test_beside_another_client_a_link_sends_as_many_at_a_time_as_its_share(
    autojump_clock: MockClock,
) -> None:
    async with open_site(share=8) as site:
        one, link = await site.sender()
        for number in range(20):
            one.transfer(link, Message(message_id=f"alone-{number}", body=b"x"))
        await wait_all_tasks_blocked()
        async with beside_another(site):
            for number in range(20):
                one.transfer(link, Message(message_id=f"beside-{number}", body=b"x"))
            await wait_all_tasks_blocked()
        await trio.sleep(1.0)

    assert site.broker.steps == [20, 1, 8, 8, 4]


async def one_part(data: bytes) -> HeldBackStream:
    """A stream from which `data` can be read at once."""
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(data)
    return HeldBackStream(ours, Pending(10, 10))


async def whole(stream: HeldBackStream, size: int) -> bytes:
    """All pieces of a part of that size."""
    pieces: list[bytes | bytearray] = []
    while sum(map(len, pieces)) < size:
        pieces.append(await stream.receive_some())
    return b"".join(pieces)


@pytest.mark.parametrize(("seconds", "sizes"), [(SLOW * 2, [1, 1, 1]), (QUICK / 2, [1, 2, 4])])
async def test_frames_that_take_long_are_processed_in_small_pieces(
    seconds: float, sizes: list[int], autojump_clock: MockClock
) -> None:
    part = bytes(range(256)) * 40
    async with open_site() as site, beside_another(site):
        with site.visit("192.0.2.1"):
            stream, pieces = await one_part(part), list[bytes | bytearray]()
            for _ in sizes:
                pieces.append(await stream.receive_some())
                await trio.sleep(seconds)
                stream.record_processed()
            await stream.aclose()

    assert [len(each) // SMALLEST_PIECE for each in pieces] == sizes
    assert part.startswith(b"".join(pieces))


async def test_unfinished_messages_count_whatever_the_connection_and_one_may_be_finished(
    autojump_clock: MockClock,
) -> None:
    clients = Clients(ClientOptions(max_bytes=10_000))
    load = clients.load("one")
    load.connect()
    unfinished, most = [0] * 30, 0

    async def receive_message(number: int) -> None:
        nonlocal most
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(bytes(8000))
        pending = Pending(10, 100_000, load_now=lambda: load)
        stream = HeldBackStream(ours, pending, unfinished=lambda: unfinished[number])
        for _ in range(8):
            unfinished[number] += len(await stream.receive_some(1000))
            most = max(most, sum(unfinished))
        unfinished[number] = 0
        pending.record_unfinished(0)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(receive_message, number)

    # The limit, the message that is being finished, and a part of each other one.
    assert most <= 10_000 + 8000 + 30 * 1000
    assert load.bytes == 0


async def test_a_connection_that_ends_leaves_its_place_to_another_unfinished_message(
    autojump_clock: MockClock,
) -> None:
    load = Clients(ClientOptions(max_bytes=10)).load("one")
    load.connect()
    first, second = (Pending(10, 1000, load_now=lambda: load) for _ in range(2))
    first.record_unfinished(10)
    second.record_unfinished(10)
    await first.wait_for_room()

    with trio.move_on_after(1) as waits:
        await second.wait_for_room()
    first.forget()
    with trio.fail_after(1):
        await second.wait_for_room()

    assert waits.cancelled_caught
    assert load.bytes == 10


async def test_one_connection_of_a_client_has_a_piece_processed_at_a_time(
    autojump_clock: MockClock,
) -> None:
    part = bytes(MUCH)
    async with open_site() as site, beside_another(site), trio.open_nursery() as nursery:
        order: list[int] = []
        working = 0

        async def process(number: int) -> None:
            nonlocal working
            with site.visit("192.0.2.1"):
                stream = await one_part(part)
                while len(order) < 24 and await stream.receive_some():
                    working += 1
                    assert working == 1
                    order.append(number)
                    await trio.sleep(SLOW * 2)  # however long it takes
                    working -= 1
                    stream.record_processed()

        for number in range(3):
            nursery.start_soon(process, number)
        await trio.sleep(RECENT / 2)
        nursery.cancel_scope.cancel()

    assert [sorted(order[at : at + 3]) for at in range(0, 24, 3)] == [[0, 1, 2]] * 8


async def test_frames_of_another_connection_come_between_two_pieces_of_attaches(
    autojump_clock: MockClock,
) -> None:
    async with open_site() as site:
        checked = 0

        class Costly(Authorizer):
            """Each check of an attach takes a millisecond of the event loop."""

            def check(self, *given: Any) -> None:
                nonlocal checked
                checked += 1
                autojump_clock.jump(SLOW)
                super().check(*given)

        light = await site.connect(host="192.0.2.2").open()
        await light.put_token(policy=POLICIES[1])
        link = await light.sender()
        floods = [site.connect(authorizer_class=Costly) for _ in range(8)]
        for sdk in floods:
            await sdk.open()
            await sdk.put_token()
        checked = 0
        for sdk in floods:
            for _ in range(100):
                sdk.engine.detach(sdk.attach(we_send=True, address="orders"))
        between: list[int] = []
        for _ in range(5):
            before = checked
            assert isinstance(await light.send(link, Message(body=b"x")), amqp.Accepted)
            between.append(checked - before)

    assert all(each < 30 for each in between[1:]), between  # the first one is unknown
    assert 0 < checked < 800  # the flood went on meanwhile


async def test_a_receive_that_is_cancelled_while_it_waits_for_its_turn_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    part = bytes(60 * 1024)
    async with open_site() as site, beside_another(site):
        with site.visit("192.0.2.1"):
            first = await one_part(part)
            second = await one_part(part)
            await first.receive_some()
            with trio.move_on_after(0.01) as scope:
                await second.receive_some()
            first.record_processed()
            with trio.fail_after(0.01):
                again = await whole(second, len(part))
            await second.aclose()
            load = site.clients.load("192.0.2.1")

    assert scope.cancelled_caught
    assert again == part
    assert load.reading.is_idle
