"""A lost connection to RabbitMQ reports which messages were not sent, and a silent peer is dead."""

import random
from collections.abc import Awaitable
from itertools import pairwise

import pytest
import trio
from pamqp import base, commands
from trio.testing import MockClock, lockstep_stream_pair

from gateway.brokers.rabbitmq.channels import Channels
from gateway.brokers.rabbitmq.limited import LimitedConnection
from gateway.brokers.rabbitmq.sender import RabbitmqSender
from gateway.domain.backoff import Backoff
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    MessageTooLarge,
    NotAuthorized,
    OutcomeUnknown,
    QuotaExceeded,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.net.rabbitmq.connection import RabbitmqConnection
from gateway.net.reconnecting import Failures, Reconnecting
from gateway.wire.rabbitmq.properties import prepare
from tests.net.rabbitmq.connection import Peer, reconnecting, sender_on, user_limit

USER_LIMIT = "NOT_ALLOWED - channels of user 'guest': the maximum allowed user limit of (8)"


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def limited(connection: RabbitmqConnection) -> LimitedConnection:
    return LimitedConnection(connections=reconnecting(connection), limit=user_limit())


async def outcome_of(sender: RabbitmqSender, results: dict[str, BrokerError], name: str) -> None:
    try:
        await sender.send("orders", [prepare(Message(message_id=name))])
    except BrokerError as error:
        results[name] = error


async def error_of(send: Awaitable[None]) -> BrokerError | None:
    try:
        await send
    except BrokerError as error:
        return error
    return None


async def test_a_peer_that_says_nothing_for_two_heartbeats_is_dead(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        opened = trio.current_time()
        await connection.ended.wait()

        assert 10.0 <= trio.current_time() - opened <= 13.0
        assert "not a byte" in str(connection.error)


async def test_heartbeats_keep_an_idle_connection(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        for _ in range(20):
            await trio.sleep(5)
            await peer.stream.send_all(b"\x08\x00\x00\x00\x00\x00\x00\xce")

        assert not connection.is_over
        nursery.cancel_scope.cancel()


async def test_a_message_that_never_left_the_outbox_was_not_sent(autojump_clock) -> None:
    results: dict[str, BrokerError] = {}
    async with trio.open_nursery() as nursery:
        peer = Peer(lockstep_stream_pair)
        connection = await peer.open(nursery)
        sender = sender_on(connection)
        nursery.start_soon(outcome_of, sender, results, "handed")
        await peer.open_lane()
        # The message is being written now, and the peer doesn't read.
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(outcome_of, sender, results, "kept")
        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(peer.stream)

    assert type(results["handed"]) is OutcomeUnknown
    assert type(results["kept"]) is Unavailable


async def test_a_message_that_no_frame_holds_is_refused_and_the_confirms_stay_in_step(
    autojump_clock,
) -> None:
    results: dict[str, BrokerError] = {}
    async with trio.open_nursery() as nursery:
        peer = Peer()
        sender = sender_on(await peer.open(nursery, max_frame=4096))
        nursery.start_soon(peer.open_lane)
        with pytest.raises(MessageTooLarge, match="the broker allows 4088"):
            await sender.send(
                "orders", [prepare(Message()), prepare(Message(properties={"n": "x" * 4096}))]
            )
        for name in ("accepted", "refused"):
            nursery.start_soon(outcome_of, sender, results, name)
            await trio.testing.wait_all_tasks_blocked()
        await peer.say(1, commands.Basic.Ack(2), commands.Basic.Nack(3, requeue=False))
        await trio.testing.wait_all_tasks_blocked()

        assert [(name, type(error)) for name, error in results.items()] == [
            ("refused", QuotaExceeded)
        ]
        nursery.cancel_scope.cancel()


async def test_a_users_limit_costs_no_message_that_is_confirmed_late(autojump_clock) -> None:
    outcomes: dict[str, BrokerError | None] = {}

    async def send(queue: str) -> None:
        outcomes[queue] = await error_of(sender.send(queue, [prepare(Message())]))

    async with trio.open_nursery() as nursery:
        peer, elsewhere = Peer(), Peer()
        sender = sender_on(await peer.open(nursery), await elsewhere.open(nursery))
        nursery.start_soon(send, "late")
        await peer.open_lane()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(send, "further")
        with trio.fail_after(3):
            await elsewhere.read_until(commands.Channel.Open)
        await elsewhere.say(0, commands.Connection.Close(530, USER_LIMIT, 20, 10))
        await trio.testing.wait_all_tasks_blocked()
        await peer.say(1, commands.Basic.Ack(2))
        await peer.read_until(commands.Basic.Publish)
        await trio.testing.wait_all_tasks_blocked()
        await peer.say(1, commands.Basic.Ack(3))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert outcomes == {"late": None, "further": None}


async def test_a_blocked_connection_takes_nothing_until_it_is_unblocked(autojump_clock) -> None:
    results: dict[str, BrokerError] = {}
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        sender = sender_on(connection)
        await peer.say(0, commands.Connection.Blocked("low on disk"))
        await trio.testing.wait_all_tasks_blocked()
        written = connection.written
        await outcome_of(sender, results, "refused")

        assert connection.written == written
        assert "low on disk" in str(results["refused"])
        await peer.say(0, commands.Connection.Unblocked())
        await trio.testing.wait_all_tasks_blocked()
        await sender.check()
        nursery.cancel_scope.cancel()


async def test_no_more_channels_than_the_broker_allows(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery, channels=1)
        await peer.open_channel(1)
        with pytest.raises(Unavailable, match="all 1 channels"):
            await connection.open_channel()
        nursery.cancel_scope.cancel()


async def test_a_channel_that_ends_leaves_the_others(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        one, other = await peer.open_channel(1), await peer.open_channel(2)
        await peer.say(1, commands.Channel.Close(404, "NOT_FOUND", 0, 0))
        await trio.testing.wait_all_tasks_blocked()

        assert type(one.error) is EntityNotFound
        assert not other.is_over
        assert not connection.is_over
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("asked_for", "answer"),
    [
        (commands.Queue.Declare(queue="a"), commands.Queue.DeleteOk(1)),
        (commands.Queue.Declare(queue="a"), commands.Channel.OpenOk()),
        (commands.Basic.Cancel(consumer_tag="c"), commands.Basic.ConsumeOk("c")),
        (None, commands.Queue.DeclareOk("a", 1, 1)),
    ],
    ids=["another kind", "of a channel", "of another consumer request", "nothing was asked"],
)
async def test_an_answer_of_another_kind_than_the_request_has_ends_its_channel_alone(
    autojump_clock, asked_for: base.Frame | None, answer: base.Frame
) -> None:
    ends: list[BrokerError] = []
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        one, other = await peer.open_channel(1), await peer.open_channel(2)
        one.on_end = ends.append
        asked = one.ask(asked_for, commands.Basic.Qos(prefetch_count=2)) if asked_for else []
        await peer.say(1, answer, commands.Basic.QosOk())
        await peer.read_until(commands.Channel.Close)
        for each in asked:
            with pytest.raises(Unavailable, match=f"the broker answered {answer.name} to"):
                await each.wait()
        later = one.ask(commands.Basic.Qos(prefetch_count=1))
        await peer.say(1, commands.Channel.CloseOk())

        assert [type(error) for error in ends] == [Unavailable]
        with pytest.raises(Unavailable):
            await later[0].wait()
        assert not other.is_over
        assert not connection.is_over
        nursery.cancel_scope.cancel()


async def test_an_answer_may_overtake_that_of_an_earlier_request(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        await peer.open(nursery)
        channel = await peer.open_channel(1)
        first, second, third = channel.ask(
            commands.Basic.Cancel(consumer_tag="c"),
            commands.Basic.Qos(prefetch_count=1),
            commands.Basic.Consume(queue="a", consumer_tag="d"),
        )
        await peer.say(1, commands.Basic.QosOk(), commands.Basic.ConsumeOk("d"))
        found = [await each.wait() for each in (second, third)]
        await peer.say(1, commands.Basic.CancelOk("c"))
        found.append(await first.wait())

        names = ["Basic.QosOk", "Basic.ConsumeOk", "Basic.CancelOk"]
        assert [each.name for each in found] == names
        assert not channel.is_over
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ((commands.Queue.DeleteOk(1),), OutcomeUnknown),
        ((commands.Channel.Close(541, "INTERNAL_ERROR", 0, 0),), Unavailable),
        ((), OutcomeUnknown),
    ],
    ids=["another answer", "a refusal", "the end of the connection"],
)
async def test_a_change_without_its_own_answer_may_have_been_made(
    autojump_clock, said: tuple[base.Frame, ...], error: type[BrokerError]
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer()
        connection = await peer.open(nursery)
        channels = Channels(lambda: limited(connection), user_limit())

        async def answer() -> None:
            await peer.read_until(commands.Channel.Open)
            await peer.say(1, commands.Channel.OpenOk())
            await peer.read_until(commands.Queue.Declare)
            if said:
                await peer.say(1, *said)
            else:
                await peer.stream.aclose()

        nursery.start_soon(answer)
        with pytest.raises(error) as raised:
            await channels.change(commands.Queue.Declare(queue="a", durable=True))
        assert type(raised.value) is error
        nursery.cancel_scope.cancel()


async def allow_channels(peer: Peer) -> None:
    """Let the peer's broker open all channels that it is asked for, up to ten."""
    await peer.read_until(commands.Channel.Open)
    for number in range(1, 11):
        await peer.say(number, commands.Channel.OpenOk())


async def test_a_connection_on_which_messages_are_held_is_asked_for_no_channel(
    autojump_clock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = [Peer(), Peer(), Peer()]
        first, second, third = [await peer.open(nursery) for peer in peers]
        made = iter([first, second, third])
        channels = Channels(lambda: limited(next(made)), user_limit())
        for peer in peers:
            nursery.start_soon(allow_channels, peer)
        held = await channels.open()
        held.holds = lambda: True
        other = await channels.open()
        other.holds = lambda: True
        await channels.open()

        assert (first.channels, second.channels, third.channels) == (1, 1, 2)
        held.holds = lambda: False
        nursery.start_soon(peers[1].say, 2, commands.Channel.OpenOk())
        await channels.open()
        assert second.channels == 2
        nursery.cancel_scope.cancel()


async def test_channels_that_nobody_uses_are_closed_at_a_users_limit(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        peers = [Peer(), Peer(), Peer()]
        made = iter([await peer.open(nursery) for peer in peers])
        limit = user_limit()
        channels = Channels(lambda: limited(next(made)), limit)
        for peer in peers:
            nursery.start_soon(allow_channels, peer)
        for _ in range(2):
            (await channels.open()).holds = lambda: True
        [ahead] = limit.ahead
        limit.believe()

        assert ahead.is_over
        assert limit.ahead == []
        nursery.cancel_scope.cancel()


async def test_after_a_failure_nobody_dials_for_a_while(autojump_clock) -> None:
    dialled: list[float] = []

    async def dial() -> RabbitmqConnection:
        dialled.append(trio.current_time())
        await trio.sleep(0.01)
        raise NotAuthorized("wrong password")

    connections: Reconnecting[RabbitmqConnection] = Reconnecting(
        dial=dial,
        failures=Failures(backoff=Backoff(first=1.0, cap=4.0, jitter=0.0), rng=random.Random(0)),
        spawn=trio.lowlevel.spawn_system_task,
    )
    for _ in range(200):
        with pytest.raises(NotAuthorized, match="wrong password"):
            await connections.get()
        await trio.sleep(0.1)

    pauses = [round(later - sooner) for sooner, later in pairwise(dialled)]
    assert pauses[:5] == [1, 2, 4, 4, 4]
