"""Links on which clients receive the messages of one session."""

from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio
import trio.testing

from gateway.domain.entity import QueueProperties
from gateway.domain.message import Described, Kind, Message, Typed
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.management import ask
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.amqp.sessions import FILTER, SQ, asks, holds, source
from tests.frontends.rest_client import wall_clock

LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TICKS_1970 = 621355968000000000


@pytest.fixture
async def sessions(house):
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    return house


async def fill(house, *sessions):
    await house.broker.send(SQ, [Message(message_id=each, session_id=each) for each in sessions])


def timeout(milliseconds):
    return {"com.microsoft:timeout": Typed(Kind.UINT, milliseconds)}


async def test_a_session_by_its_name(sessions, sdk, autojump_clock):
    await fill(sessions, "a", "b", "a")

    link, answer = await holds(sdk, "a")
    sdk.engine.grant(link, 10)
    received = [decode_delivery((await sdk.delivery(link)).payload) for _ in range(2)]
    await trio.sleep(1)

    until = (wall_clock() - timedelta(seconds=1)).timestamp() + 60
    assert answer.source == source("a")
    assert answer.properties[LOCKED_UNTIL] == pytest.approx(TICKS_1970 + until * 10**7, abs=10**7)
    assert [each.message.session_id for each in received] == ["a", "a"]
    assert not [event for event in sdk.told if isinstance(event, amqp.TransferReceived)]


# .NET asks with a bare text and reads the answer by FilterSet.TryGetValue<string>
# (AmqpReceiver.OpenReceiverLinkAsync). go-amqp's decoder of filters reads described values alone;
# azservicebus asks with this descriptor (session_receiver.go).
@pytest.mark.parametrize(
    "descriptor",
    [None, Typed(Kind.ULONG, 0x137000000C), Typed(Kind.SYMBOL, FILTER)],
    ids=["bare", "ulong", "symbol"],
)
@pytest.mark.parametrize("wanted", ["a", None], ids=["named", "next"])
async def test_the_filter_is_answered_in_the_form_that_was_asked_for(
    sessions, sdk, descriptor, wanted, autojump_clock
):
    await fill(sessions, "a")

    def form(name):
        return name if descriptor is None else Described(descriptor, name)

    _, answer = await holds(sdk, form(wanted))

    assert answer.source.filters == {FILTER: form("a")}


class WithTasks:
    """A broker whose receivers of sessions have tasks, as those of several queues."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @asynccontextmanager
    async def open_session(self, *arguments):
        async with self.inner.open_session(*arguments) as session, trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            yield session
            nursery.cancel_scope.cancel()


async def test_a_session_whose_receiver_has_tasks_lasts_beyond_the_time_of_its_attach(
    sessions, autojump_clock
):
    sessions.frontend = attrs.evolve(sessions.frontend, broker=WithTasks(sessions.faulty))
    sdk = await sessions.client()
    await fill(sessions, "a")

    link, _ = await holds(sdk, "a")
    await trio.sleep(2 * sessions.frontend.options.attach_timeout)
    sdk.engine.grant(link, 10)
    received = decode_delivery((await sdk.delivery(link)).payload)

    assert received.message.message_id == "a"


async def test_a_session_without_a_name_is_one_too(sessions, sdk, autojump_clock):
    await fill(sessions, "")

    _, answer = await holds(sdk, "")

    assert answer.source.filters == {FILTER: ""}


async def test_the_next_session_is_the_one_that_waits_the_longest(sessions, sdk, autojump_clock):
    await fill(sessions, "b", "a")

    answers = [(await holds(sdk, None))[1] for _ in range(2)]

    assert [answer.source.filters[FILTER] for answer in answers] == ["b", "a"]


async def test_a_client_waits_for_the_next_session_as_long_as_it_says(
    sessions, sdk, autojump_clock
):
    began = trio.current_time()

    error = await sdk.refusal(**asks(None, properties=timeout(7000)))

    assert error.condition == "com.microsoft:timeout"
    assert trio.current_time() - began == pytest.approx(7, abs=0.1)


async def test_a_session_that_comes_in_time_is_taken(sessions, sdk, autojump_clock):
    link = sdk.attach(**asks(None, properties=timeout(7000)))
    await trio.sleep(6)

    await fill(sessions, "a")
    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)

    assert answer.source.filters == {FILTER: "a"}


async def test_a_client_that_stops_to_wait_holds_nothing(sessions, sdk, autojump_clock):
    link = sdk.attach(**asks(None))
    await trio.sleep(1)
    sdk.engine.detach(link)
    await trio.sleep(1)
    await fill(sessions, "a")

    _, answer = await holds(sdk, None)

    assert answer.source.filters == {FILTER: "a"}


async def test_a_session_belongs_to_one_link(sessions, sdk, autojump_clock):
    await holds(sdk, "a")

    error = await (await sessions.client()).refusal(**asks("a"))

    assert error.condition == "com.microsoft:session-cannot-be-locked"


async def test_a_link_that_goes_lets_its_session_go_soon(sessions, sdk, autojump_clock):
    await fill(sessions, "a")
    link, _ = await holds(sdk, "a")
    sdk.engine.grant(link, 1)
    await sdk.delivery(link)
    sdk.engine.detach(link)
    await trio.sleep(0.1)

    again, _ = await holds(sdk, "a")
    sdk.engine.grant(again, 1)
    delivery = decode_delivery((await sdk.delivery(again)).payload)

    assert delivery.message.message_id == "a"


def release_after(house, seconds):
    open_session = house.broker.open_session

    @asynccontextmanager
    async def released_late(*asked):
        async with open_session(*asked) as session:
            yield session
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    house.faulty.open_session = released_late


@pytest.mark.parametrize("wanted", ["a", None])
async def test_a_client_that_hears_that_its_link_is_detached_finds_the_session_free(
    sessions, sdk, wanted, autojump_clock
):
    release_after(sessions, 3)
    await fill(sessions, "a", "b")
    other = await sessions.client()
    link, _ = await holds(sdk, "a")
    began = trio.current_time()

    sdk.engine.detach(link, awaited=True)
    await sdk.until(amqp.LinkDetached)
    after = trio.current_time() - began
    _, answer = await holds(other, wanted)

    assert answer.source.filters == {FILTER: "a"}
    assert after == pytest.approx(3)


async def test_a_client_that_detaches_and_ends_at_once_finds_its_session_free(
    sessions, sdk, autojump_clock
):
    # Java's retired SDK does so: CoreMessageReceiver closes its link and its session in one write.
    release_after(sessions, 3)
    link, _ = await holds(sdk, "a")
    began = trio.current_time()

    sdk.engine.detach(link)
    sdk.engine.end(sdk.session)
    sdk.session = sdk.engine.begin()
    await sdk.receiver()
    beside, free = trio.current_time() - began, sdk.engine.free_sessions
    await trio.sleep(2.9)
    before = sdk.engine.free_sessions
    await trio.sleep(0.2)
    after = sdk.engine.free_sessions
    _, answer = await holds(sdk, "a")

    assert answer.source.filters == {FILTER: "a"}
    assert beside < 1
    assert (before, after) == (free, free + 1), "the end is answered when the session is free"


async def test_a_detach_is_answered_in_time_although_the_session_is_not_released(
    sessions, sdk, autojump_clock
):
    release_after(sessions, 100)
    link, _ = await holds(sdk, "a")
    began = trio.current_time()

    sdk.engine.detach(link, awaited=True)
    await sdk.until(amqp.LinkDetached)
    after = trio.current_time() - began
    error = await sdk.refusal(**asks("a"))

    assert after == pytest.approx(sessions.frontend.options.answer_timeout)
    assert error.condition == "com.microsoft:session-cannot-be-locked"


async def test_a_client_that_stops_to_wait_for_a_session_is_answered_at_once(
    sessions, sdk, autojump_clock
):
    link = sdk.attach(**asks(None))
    await trio.sleep(1)
    began = trio.current_time()

    sdk.engine.detach(link, awaited=True)
    await sdk.until(amqp.LinkDetached)

    assert trio.current_time() == began


@pytest.mark.parametrize("ends_session", [True, False])
async def test_nothing_waits_for_a_release_when_the_session_or_the_connection_ends(
    sessions, sdk, ends_session, autojump_clock
):
    release_after(sessions, 100)
    link, _ = await holds(sdk, "a")
    began = trio.current_time()

    sdk.engine.detach(link)
    if ends_session:
        sdk.engine.end(sdk.session)
        sdk.session = sdk.engine.begin()
        await sdk.receiver()
    else:
        await sdk.connection.close()

    assert trio.current_time() - began < 1


async def test_a_gateway_that_shuts_down_waits_for_no_release(sessions, sdk, autojump_clock):
    release_after(sessions, 100)
    link, _ = await holds(sdk, "a")
    sdk.engine.detach(link)
    began = trio.current_time()

    sessions.frontend.drain.begin()
    closed = await sdk.until(amqp.ConnectionClosed)

    assert closed.error.condition == "amqp:connection:forced"
    assert trio.current_time() - began < 1


async def test_a_message_that_was_settled_before_the_link_went_is_settled(
    sessions, sdk, autojump_clock
):
    await fill(sessions, *["a"] * 20)
    link, _ = await holds(sdk, "a")
    sdk.engine.grant(link, 20)

    for _ in range(20):
        sdk.engine.settle((await sdk.delivery(link)).delivery, amqp.ACCEPTED)
    sdk.engine.detach(link)
    await trio.sleep(1)

    assert await sessions.broker.peek(SQ, limit=20) == []


async def test_a_lock_that_runs_out_ends_the_link(sessions, sdk, autojump_clock):
    await fill(sessions, "a")
    link, _ = await holds(sdk, "a")
    sdk.engine.grant(link, 1)
    await sdk.delivery(link)
    began = trio.current_time()

    detached = await sdk.until(amqp.LinkDetached)

    assert detached.link == link
    assert detached.error.condition == "com.microsoft:session-lock-lost"
    assert 59 < trio.current_time() - began < 61


async def test_a_lock_that_runs_out_while_a_client_waits_ends_the_link(
    sessions, sdk, autojump_clock
):
    link, _ = await holds(sdk, "a")
    sdk.engine.grant(link, 1)

    detached = await sdk.until(amqp.LinkDetached)

    assert detached.error.condition == "com.microsoft:session-lock-lost"


@pytest.mark.parametrize("seconds", [5, 300])
async def test_a_lock_that_runs_out_ends_a_link_without_credit(house, sdk, seconds, autojump_clock):
    lock = timedelta(seconds=seconds)
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True, lock_duration=lock))
    began = trio.current_time()
    await holds(sdk, "a")

    detached = await sdk.until(amqp.LinkDetached)

    assert detached.error.condition == "com.microsoft:session-lock-lost"
    assert trio.current_time() - began == pytest.approx(seconds, abs=0.01)


async def test_a_session_that_is_renewed_is_held_for_as_long(sessions, sdk, autojump_clock):
    link, _ = await holds(sdk, "a")
    for _ in range(3):
        await trio.sleep(30)
        await ask(sdk, ops.RenewSession(session_id="a"), "sq")
    renewed = trio.current_time()

    detached = await sdk.until(amqp.LinkDetached)

    assert detached.link == link
    assert trio.current_time() - renewed == pytest.approx(60, abs=0.01)


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        (asks("a", "orders"), "amqp:not-allowed"),
        (asks(None, "orders"), "amqp:not-allowed"),
        (asks(7), "amqp:not-allowed"),
        (asks("a", "nothing"), "amqp:not-found"),
        ({"we_send": False, "address": "sq"}, "amqp:not-allowed"),
    ],
)
async def test_a_link_that_does_not_fit_its_queue_is_refused(
    sessions, sdk, asked, condition, autojump_clock
):
    error = await sdk.refusal(**asked)

    assert error.condition == condition


async def test_a_connection_that_is_cut_lets_its_session_go(sessions, autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.frontend.serve_connection, theirs)
        lost = Sdk.on(ours)
        nursery.start_soon(lost.run)
        await lost.open()
        await lost.put_token()
        await holds(lost, "a")
        nursery.cancel_scope.cancel()

    await holds(await sessions.client(), "a")


async def test_a_session_that_is_cut_while_it_is_awaited_is_free(sessions, autojump_clock):
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.frontend.serve_connection, theirs)
        lost = Sdk.on(ours)
        nursery.start_soon(lost.run)
        await lost.open()
        await lost.put_token()
        lost.attach(**asks(None))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await fill(sessions, "a")

    _, answer = await holds(await sessions.client(), None)

    assert answer.source.filters == {FILTER: "a"}
