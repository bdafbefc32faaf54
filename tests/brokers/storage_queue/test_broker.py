"""The namespace `storage-queue` beyond the contract: polling, shards, poison queues, faults."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Message,
    ReceiveMode,
)
from gateway.extensions.sharding.table import ShardingRule
from gateway.ports import Receiver
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import Style, build_response, parse_response
from gateway.wire.storage_queue.connection_string import parse_storage_connection
from gateway.wire.storage_queue.errors import Trace, build_error, build_refusal
from gateway.wire.storage_queue.operations import GetMessages, Messages
from tests.brokers.storage_queue.azurites import client
from tests.brokers.storage_queue.harness import ORDERS, harness
from tests.brokers.storage_queue.served import served
from tests.extensions.sharding.harness import sharded
from tests.harness.steps import steps_of_tasks

TRACE = Trace(request_id="id", time="now")
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def numbered(*numbers: object) -> list[Message]:
    return [Message(message_id=str(number), body=b"x") for number in numbers]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.message_id for delivery in deliveries]


async def take_one(receiver: Receiver) -> Delivery:
    with trio.fail_after(DAY.total_seconds() * 30):
        [delivery] = await receiver.receive(1)
    return delivery


async def take_all(receiver: Receiver, wanted: int) -> list[Delivery]:
    taken: list[Delivery] = []
    with trio.fail_after(3600):
        while len(taken) < wanted:
            taken += await receiver.receive(wanted - len(taken))
    return taken


Handle = Callable[[Request], Awaitable[Response]]


def failing(part: str, error: BrokerError, *, times: int = 1, done: bool = False) -> Any:
    """The next requests with that in their line end so; `done`: they are carried out before."""
    left = times

    async def fault(request: Request, handle: Handle) -> Response:
        nonlocal left
        if part not in f"{request.method} {request.target}" or left == 0:
            return await handle(request)
        left -= 1
        if done:
            await handle(request)
        await trio.lowlevel.checkpoint()
        raise error

    return fault


def answering(part: str, response: Response) -> Any:
    async def fault(request: Request, handle: Handle) -> Response:
        if part not in f"{request.method} {request.target}":
            return await handle(request)
        await trio.lowlevel.checkpoint()
        return response

    return fault


# --- asking again and again


async def test_a_receiver_that_finds_nothing_asks_after_longer_and_longer_pauses(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(600):
                await receiver.receive(1)

        # Six until the pause is the longest, then one every five seconds or so.
        assert 600 / 6 < here.account.count("GET", "/messages") < 600 / 4 + 7


async def test_a_poll_is_one_request_and_locks_for_as_long_as_it_is_told(autojump_clock):
    async with harness() as it:
        await it.broker.create_queue(ORDERS, QueueProperties())
        async with it.broker.open_receiver(ORDERS) as receiver:
            nothing = await receiver.poll(10)
            asked = it.account.count("GET", "messages")
            await it.broker.send(ORDERS, numbered(1))
            [delivery] = await receiver.poll(10, lock=300 * SECOND)
            await trio.sleep(290)
            still_locked = await receiver.poll(10)
            await trio.sleep(20)
            [again] = await receiver.poll(10)

    assert (list(nothing), asked) == ([], 1)
    assert delivery.locked_until - it.clock() <= 300 * SECOND
    assert list(still_locked) == []
    assert again.delivery_count == 2


async def test_a_send_through_this_gateway_wakes_who_waits_and_only_as_many_as_needed(
    autojump_clock,
):
    async with harness() as here, trio.open_nursery() as nursery:
        await here.broker.create_queue(ORDERS, QueueProperties())
        taken: list[float] = []

        async def consume() -> None:
            async with here.broker.open_receiver(ORDERS) as receiver:
                await take_one(receiver)
                taken.append(trio.current_time())
                await trio.sleep_forever()

        for _ in range(5):
            nursery.start_soon(consume)
        await trio.sleep(60.001)
        asked, sent = here.account.count("GET", "/messages"), trio.current_time()
        await here.broker.send(ORDERS, numbered(1))
        await trio.sleep(0.01)

        assert taken == [sent]
        assert here.account.count("GET", "/messages") == asked + 1
        nursery.cancel_scope.cancel()


async def test_a_busy_service_is_asked_again_after_the_time_that_it_names(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        busy = build_error(Busy("busy", retry_after=100), TRACE)
        here.account.fault = answering("GET /devstoreaccount1/orders/messages", busy)
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(79):
                await receiver.receive(1)

            assert here.account.count("GET", "/messages") == 1
            with trio.move_on_after(120):
                await receiver.receive(1)
            here.account.fault = None
            began = trio.current_time()
            await take_one(receiver)
            assert trio.current_time() == began


async def test_a_busy_service_without_a_time_wants_its_callers_to_back_off(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = answering("POST", build_refusal("ServerBusy", TRACE))

        with pytest.raises(Busy) as caught:
            await here.broker.send(ORDERS, numbered(1))
    assert caught.value.retry_after == pytest.approx(1.0, rel=0.2)
    assert caught.value.backs_off


# --- batches and shards


async def test_shards_share_the_messages_and_receivers_take_from_all(autojump_clock):
    async with harness() as here:
        broker = sharded(here.broker, ShardingRule(queue="orders", shards=3), here.clock)
        await broker.create_queue(ORDERS, QueueProperties())
        for number in range(30):
            await broker.send(ORDERS, numbered(number))
        depths = await here.account.depths()
        info = await broker.inspect(ORDERS)
        async with broker.open_receiver(ORDERS) as receiver:
            taken = await take_all(receiver, 30)
            for delivery in taken:
                await receiver.settle(delivery, Complete())

        assert {name: each for name, each in depths.items() if "poison" not in name} == {
            "orders": 10,
            "pg-orderszn1": 10,
            "pg-orderszn2": 10,
        }
        assert info.active == 30
        assert sorted(map(int, ids(taken))) == list(range(30))
        assert (await broker.inspect(ORDERS)).active == 0
        assert [each.path for each in await broker.list_queues()] == [ORDERS]
        assert [each.path.shard_number for each in await here.broker.list_queues()] == [0, 1, 2]
        assert len(await here.broker.list_queues("orders/x-pairgate-sh")) == 2


async def test_shards_that_are_missing_are_made_and_said(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        broker = sharded(here.broker, ShardingRule(queue="orders", shards=2), here.clock)
        with pytest.raises(EntityNotFound):
            await broker.probe(ORDERS)
        with pytest.raises(EntityNotFound):
            await broker.inspect(ORDERS)
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.probe(ORDERS)
        with pytest.raises(EntityExists):
            await broker.create_queue(ORDERS, QueueProperties())
        await broker.delete_queue(ORDERS)

        assert await here.account.depths() == {}


async def test_a_batch_of_which_a_part_was_accepted_is_unknown(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        puts = 0

        async def fail_second(request: Request, handle: Handle) -> Response:
            nonlocal puts
            puts += request.method == "POST"
            if puts == 2:
                await trio.lowlevel.checkpoint()
                raise Unavailable("away")
            return await handle(request)

        here.account.fault = fail_second
        with pytest.raises(OutcomeUnknown, match="1 of 2"):
            await here.broker.send(ORDERS, numbered(1, 2))


# --- dead letters


async def test_a_message_that_is_delivered_too_often_goes_to_the_poison_queue_with_its_reason(
    autojump_clock,
):
    async with harness() as here:
        await here.broker.create_queue(
            ORDERS, QueueProperties(max_delivery_count=2, lock_duration=SECOND)
        )
        await here.broker.send(ORDERS, numbered(1, 2))
        async with here.broker.open_receiver(ORDERS) as receiver:
            for _ in range(2):  # the locks of the first run out, the second is given back
                _, second = await take_all(receiver, 2)
                await receiver.settle(second, Abandon())
                await trio.sleep(2)
            await here.broker.send(ORDERS, numbered(3))
            last = await take_one(receiver)
        async with here.broker.open_receiver(ORDERS.dead_letter) as receiver:
            dead = await take_all(receiver, 2)
            why = {each.message.properties["DeadLetterReason"] for each in dead}
            with pytest.raises(NotSupported):
                await receiver.settle(dead[0], DeadLetter(reason="again"))

        assert last.message.message_id == "3"
        assert (set(ids(dead)), why) == ({"1", "2"}, {"MaxDeliveryCountExceeded"})
        assert (await here.broker.inspect(ORDERS)).dead_lettered == 2


async def test_a_message_that_is_given_back_as_often_as_allowed_is_dead_lettered_at_once(
    autojump_clock,
):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(max_delivery_count=1))
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            await receiver.settle(await take_one(receiver), Abandon(properties={"a": 1}))
        async with here.broker.open_receiver(ORDERS.dead_letter) as receiver:
            dead = await take_one(receiver)

        assert dead.message.properties["a"] == 1
        assert dead.message.properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


async def test_of_too_many_messages_the_oldest_are_not_kept_and_can_still_be_settled(
    autojump_clock,
):
    async with harness(max_kept=1) as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1, 2, 3))
        async with here.broker.open_receiver(ORDERS) as receiver:
            first, second, _ = await take_all(receiver, 3)
            with pytest.raises(LockLost):
                await receiver.settle(first, DeadLetter(reason="bad"))
            await receiver.renew(second)
            await receiver.settle(second, Complete())


async def test_a_forgotten_delivery_is_given_back_as_it_came(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            receiver.forget_message(delivery)
            await receiver.settle(delivery, Abandon())
            again = await take_one(receiver)

        assert again.message == delivery.message


async def test_a_queue_of_somebody_else_gives_nothing_up_and_gets_a_poison_queue_when_needed(
    autojump_clock,
):
    async with harness() as here:
        await here.account.store.create_queue(ORDERS, QueueProperties(max_delivery_count=10**6))
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            for count in range(1, 31):
                delivery = await take_one(receiver)
                assert delivery.delivery_count == count
                await receiver.settle(delivery, Abandon())
            await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))

        assert await here.account.depths() == {"orders": 0, "orders-poison": 1}


async def test_a_text_without_room_for_a_reason_is_dead_lettered_as_it_is(autojump_clock):
    async with harness(keep_ids=False) as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        text = b"x" * storage.MAX_MESSAGE
        await here.broker.send(ORDERS, [Message(body=text)])
        async with here.broker.open_receiver(ORDERS) as receiver:
            await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
        async with here.broker.open_receiver(ORDERS.dead_letter) as receiver:
            dead = await take_one(receiver)

        assert dead.message.body == text


async def test_a_message_that_somebody_else_has_by_now_is_not_dead_lettered(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=SECOND))
        await here.broker.send(ORDERS, numbered(1))
        async with (
            here.broker.open_receiver(ORDERS) as slow,
            here.broker.open_receiver(ORDERS) as other,
        ):
            delivery = await take_one(slow)
            await trio.sleep(2)
            await take_one(other)
            for settlement in (DeadLetter(reason="bad"), Complete()):
                with pytest.raises(LockLost):
                    await slow.settle(delivery, settlement)

        assert (await here.broker.inspect(ORDERS)).dead_lettered == 0


async def test_a_message_that_nobody_took_meanwhile_is_settled_after_its_lock_too(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=SECOND))
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            await trio.sleep(10)
            await receiver.settle(delivery, Complete())

        assert (await here.broker.inspect(ORDERS)).active == 0


async def test_a_backlog_queue_gives_nothing_up(autojump_clock):
    backlog = EntityPath("east/x-servicebus-transfer/0")
    async with harness() as here:
        wanted = QueueProperties(max_delivery_count=2**31 - 1, dead_lettering_on_expiration=True)
        info = await here.broker.create_queue(backlog, wanted)
        with pytest.raises(NotSupported, match="dead_lettering_on_expiration"):
            await here.broker.create_queue(ORDERS, wanted)

        assert info.properties.max_delivery_count == 2**31 - 1
        assert [each.path for each in await here.broker.list_queues("EAST/x-")] == [backlog]


# --- time


async def test_a_message_that_is_scheduled_beyond_seven_days_comes_when_it_is_due(autojump_clock):
    async with harness(poll=Backoff(first=1.0, cap=3600.0)) as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        due = here.clock() + 20 * DAY
        await here.broker.send(ORDERS, [Message(message_id="1", scheduled=due)])
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)

            assert timedelta(0) <= here.clock() - due < timedelta(hours=2)
            assert delivery.message.scheduled == due
            assert delivery.enqueued == due


async def test_a_message_that_a_server_hands_out_after_its_end_is_removed(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, [Message(body=b"hello", time_to_live=5 * SECOND)])

        async def forgetful(request: Request, handle: Handle) -> Response:
            """A server that forgets when a message expires, as Azurite after a restart."""
            response = await handle(request)
            if request.method != "GET" or "/messages" not in request.target:
                return response
            answer = parse_response(GetMessages(queue="orders"), response)
            assert isinstance(answer, Messages)
            old = [attrs.evolve(each, expires=each.inserted) for each in answer.items]
            return build_response(GetMessages(queue="orders"), Messages(tuple(old)), Style())

        here.account.fault = forgetful
        await trio.sleep(3)
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(1):
                await receiver.receive(1)
                pytest.fail("it was handed over")

        assert (await here.broker.inspect(ORDERS)).active == 0


@pytest.mark.parametrize("skew", [-10, 10], ids=["behind", "ahead"])
@pytest.mark.parametrize("wrong", ["sender", "receiver"])
async def test_a_clock_that_is_wrong_ends_no_message_s_life(autojump_clock, skew, wrong):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        minutes = timedelta(minutes=skew)
        here.clock.skew = minutes if wrong == "sender" else timedelta()
        sent = Message(message_id="1", time_to_live=60 * SECOND)
        await here.broker.send(ORDERS, [sent])
        here.clock.skew = minutes if wrong == "receiver" else timedelta()
        await trio.sleep(50)
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            await receiver.settle(delivery, Abandon())
            await trio.sleep(15)
            with trio.move_on_after(1):
                await receiver.receive(1)
                pytest.fail("it has expired by now")

        assert delivery.message == sent


def delaying(seconds: float, part: str = "") -> Any:
    """The answers come so much later."""

    async def fault(request: Request, handle: Handle) -> Response:
        response = await handle(request)
        if part in f"{request.method} {request.target}":
            await trio.sleep(seconds)
        return response

    return fault


async def test_the_next_receive_gets_the_messages_of_a_cancelled_one(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=30 * SECOND))
        await here.broker.send(ORDERS, numbered(1, 2, 3))
        async with here.broker.open_receiver(ORDERS) as receiver:
            here.account.fault = delaying(5, "messages?")
            with trio.move_on_after(4):
                await receiver.receive(2)
            delivery = await take_one(receiver)
            other = await take_one(receiver)
            asked = here.account.count("GET", "/messages")

        assert (delivery.delivery_count, other.delivery_count, asked) == (1, 1, 1)


async def test_receives_with_short_deadlines_get_what_a_slow_account_has(autojump_clock):
    """Each of them would otherwise begin with the queue's properties again."""
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = delaying(1.5)
        found: Sequence[Delivery] = ()
        async with here.broker.open_receiver(ORDERS) as receiver:
            for _ in range(4):
                with trio.move_on_after(1):
                    found = found or await receiver.receive(1)

            assert ids(found) == ["1"]


async def test_messages_that_no_receive_asks_for_any_more_are_visible_again_soon(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=DAY / 2))
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = delaying(1, "messages?")
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(0.5):
                await receiver.receive(1)
            with trio.fail_after(20):
                async with here.broker.open_receiver(ORDERS) as another:
                    [delivery] = await another.receive(1)

        assert delivery.delivery_count == 2


async def test_the_end_of_a_receiver_shows_what_its_last_request_has_taken(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=DAY / 2))
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = delaying(1, "messages?")
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(0.5):
                await receiver.receive(1)
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.fail_after(5):
                [delivery] = await receiver.receive(1)

        assert delivery.delivery_count == 2


async def test_a_receiver_that_ends_doesn_t_wait_for_an_account_that_never_answers(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = delaying(3600, "messages?")
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(0.5):
                await receiver.receive(1)
            ended = trio.current_time()

        assert trio.current_time() - ended == pytest.approx(2.0)


async def test_a_request_without_an_answer_is_given_up_and_made_again(autojump_clock):
    """The connection may have gone bad, while another would work."""
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = delaying(3600, "messages?")
        async with here.broker.open_receiver(ORDERS) as receiver:
            with trio.move_on_after(1):
                await receiver.receive(1)
            here.account.fault = None
            await here.broker.send(ORDERS, numbered(1))
            with trio.fail_after(15):
                delivery = await take_one(receiver)

        assert ids([delivery]) == ["1"]


async def test_a_message_is_deleted_when_its_receive_gets_it_and_not_before(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = delaying(1, "messages?")
        delete = ReceiveMode.RECEIVE_AND_DELETE
        async with here.broker.open_receiver(ORDERS, delete) as receiver:
            with trio.move_on_after(0.5):
                await receiver.receive(1)
            await trio.sleep(2)
            before = here.account.count("DELETE", "/messages")
            taken = await take_one(receiver)

        assert (before, here.account.count("DELETE", "/messages")) == (0, 1)
        assert taken.lock_token is None


# --- faults


async def test_a_busy_account_asks_for_longer_and_longer_pauses(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        busy = build_refusal("ServerBusy", TRACE)
        here.account.fault = answering("POST", busy)
        pauses: list[float] = []
        for _ in range(4):
            with pytest.raises(Busy) as caught:
                await here.broker.send(ORDERS, numbered(1))
            with pytest.raises(Busy) as beside:
                await here.broker.send(ORDERS, numbered(2))
            pauses.append(caught.value.retry_after)
            await trio.sleep(pauses[-1])
        here.account.fault = None
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = answering("POST", busy)
        with pytest.raises(Busy) as again:
            await here.broker.send(ORDERS, numbered(1))

    assert pauses == pytest.approx([1, 2, 4, 8], rel=0.2)
    assert pauses != pytest.approx([1, 2, 4, 8], rel=0.001), "so that clients come one by one"
    assert beside.value.retry_after == pytest.approx(pauses[-1]), "one pause for all senders"
    assert again.value.retry_after == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unavailable("refused"), Outcome.NOT_SENT),
        (OutcomeUnknown("no answer"), Outcome.UNKNOWN),
    ],
    ids=["refused", "no answer"],
)
async def test_a_put_that_fails_says_whether_it_may_have_arrived(autojump_clock, error, outcome):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = failing("POST", error, done=outcome is Outcome.UNKNOWN)
        with pytest.raises(type(error)) as caught:
            await here.broker.send(ORDERS, numbered(1))

        assert caught.value.outcome is outcome
        assert (await here.broker.inspect(ORDERS)).active == (outcome is Outcome.UNKNOWN)


@pytest.mark.parametrize("code", ["InternalError", "OperationTimedOut"])
async def test_a_put_that_the_service_could_not_finish_is_unknown(autojump_clock, code):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = answering("POST", build_refusal(code, TRACE))

        with pytest.raises(OutcomeUnknown):
            await here.broker.send(ORDERS, numbered(1))


async def test_an_answer_that_is_not_the_service_s_is_unknown(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = answering("POST", Response(status=201, body=b"<html></html>"))

        with pytest.raises(OutcomeUnknown, match="isn't one of the Queue service"):
            await here.broker.send(ORDERS, numbered(1))


async def test_in_a_batch_a_failure_after_the_first_is_unknown_and_before_it_is_not(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        here.account.fault = failing("POST", Unavailable("away"))
        with pytest.raises(Unavailable):
            await here.broker.send(ORDERS, numbered(1, 2))
        puts = 0

        async def second_fails(request: Request, handle: Handle) -> Response:
            nonlocal puts
            puts += request.method == "POST"
            if puts == 2:
                raise Unavailable("away")
            return await handle(request)

        here.account.fault = second_fails
        with pytest.raises(OutcomeUnknown, match="1 of 3"):
            await here.broker.send(ORDERS, numbered(1, 2, 3))

        assert puts == 2


async def test_a_batch_with_one_message_too_large_is_refused_whole(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        with pytest.raises(MessageTooLarge):
            await here.broker.send(ORDERS, [*numbered(1), Message(body=b"\xff" * 50_000)])

        assert here.account.count("POST", "/messages") == 0


async def test_a_completion_that_may_have_worked_is_repeated_with_success(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            here.account.fault = failing("DELETE", OutcomeUnknown("no answer"), done=True)
            with pytest.raises(OutcomeUnknown):
                await receiver.settle(delivery, Complete())
            await receiver.settle(delivery, Complete())
            with pytest.raises(LockLost):
                await receiver.settle(delivery, Complete())


async def test_a_completion_that_was_given_up_and_has_worked_is_repeated_with_success(
    autojump_clock,
):
    async def never_answered(request, serve):
        await serve(request)
        await trio.sleep_forever()

    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            here.account.fault = never_answered
            with trio.move_on_after(1.0) as scope:
                await receiver.settle(delivery, Complete())
            here.account.fault = None
            await receiver.settle(delivery, Complete())

        assert scope.cancelled_caught
        assert await here.account.depths() == {"orders": 0, "orders-poison": 0}


async def test_a_received_and_perhaps_deleted_message_is_handed_over(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        here.account.fault = failing("DELETE", OutcomeUnknown("no answer"), done=True)
        mode = ReceiveMode.RECEIVE_AND_DELETE
        async with here.broker.open_receiver(ORDERS, mode) as receiver:
            delivery = await take_one(receiver)

        assert (delivery.message.message_id, delivery.lock_token) == ("1", None)


async def test_a_dead_letter_that_cannot_be_put_stays_where_it_is(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            here.account.fault = failing("POST", Unavailable("away"))
            with pytest.raises(Unavailable):
                await receiver.settle(delivery, DeadLetter(reason="bad"))
            await receiver.settle(delivery, Abandon())

            assert (await take_one(receiver)).message.message_id == "1"


async def test_a_renewal_gives_a_new_receipt_that_is_used_from_then_on(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=10 * SECOND))
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            for _ in range(5):
                await trio.sleep(8)
                assert await receiver.renew(delivery) == here.clock() + 10 * SECOND
            await receiver.settle(delivery, Complete())

        assert (await here.broker.inspect(ORDERS)).active == 0


@pytest.mark.parametrize("settlement", [Complete(), Abandon(), DeadLetter(reason="bad")], ids=repr)
async def test_a_settlement_waits_for_the_receipt_of_a_renewal_under_way(
    autojump_clock, settlement
):
    async def slow_answer(request, handle):
        answer = await handle(request)
        if request.method == "PUT":
            await trio.sleep(1)
        return answer

    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties(lock_duration=10 * SECOND))
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            here.account.fault = slow_answer
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receiver.renew, delivery)
                await trio.sleep(0.5)
                await receiver.settle(delivery, settlement)

        active = (await here.broker.inspect(ORDERS)).active
        assert active == (1 if isinstance(settlement, Abandon) else 0)


async def test_an_abandoned_message_can_get_new_properties(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, [Message(message_id="1", properties={"a": 1, "b": 2})])
        async with here.broker.open_receiver(ORDERS) as receiver:
            await receiver.settle(await take_one(receiver), Abandon(properties={"b": 3}))
            again = await take_one(receiver)
            with pytest.raises(NotSupported):
                await receiver.settle(again, Defer())

            assert again.message.properties == {"a": 1, "b": 3}


# --- rights


async def test_a_key_that_may_only_send_passes_a_probe_and_a_wrong_key_does_not(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        part = "GET /devstoreaccount1/orders?comp=metadata"
        refusal = build_refusal("AuthorizationPermissionMismatch", TRACE)
        here.account.fault = answering(part, refusal)
        await here.broker.probe(ORDERS)
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            await take_one(receiver)
        here.account.fault = answering(part, build_refusal("AuthenticationFailed", TRACE))
        with pytest.raises(NotAuthorized):
            await here.broker.probe(ORDERS)


async def test_a_shared_access_signature_goes_with_each_request(autojump_clock):
    async with harness() as here:
        peer = here.peer
        connection = parse_storage_connection(
            "QueueEndpoint=http://127.0.0.1:10001/devstoreaccount1;SharedAccessSignature=sv=1&sig=s"
        )
        asked: list[Request] = []

        async def ask(request: Request, max_body: int | None = None) -> Response:
            await trio.lowlevel.checkpoint()
            asked.append(request)
            return Response(status=204)

        signed = attrs.evolve(peer, ask=ask, connection=connection)
        await signed.run(storage.DeleteQueue(queue="orders"))
        await signed.run(storage.ClearMessages(queue="orders"))
        await signed.run(storage.SetMetadata(queue="orders", metadata={}))

    assert [each.target for each in asked] == [
        "/devstoreaccount1/orders?sv=1&sig=s",
        "/devstoreaccount1/orders/messages?sv=1&sig=s",
        "/devstoreaccount1/orders?comp=metadata&sv=1&sig=s",
    ]
    assert all(each.headers.get("Authorization") is None for each in asked)


# --- the rest


async def test_a_message_keeps_its_number_as_long_as_it_is_there(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1, 2))
        peeked = await here.broker.peek(ORDERS, limit=2)
        rest = await here.broker.peek(ORDERS, from_sequence=peeked[1].sequence_number, limit=5)
        async with here.broker.open_receiver(ORDERS) as receiver:
            first = await take_one(receiver)
            await receiver.settle(first, Abandon())
            again = await take_all(receiver, 2)

        assert (ids(peeked), ids(rest)) == (["1", "2"], ["2"])
        assert first.sequence_number == peeked[0].sequence_number
        assert {each.sequence_number for each in again} == {each.sequence_number for each in peeked}


async def test_dead_letters_can_be_peeked(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())
        await here.broker.send(ORDERS, numbered(1))
        async with here.broker.open_receiver(ORDERS) as receiver:
            await receiver.settle(await take_one(receiver), DeadLetter(reason="bad"))
        [dead] = await here.broker.peek(ORDERS.dead_letter, limit=5)

        assert dead.message.properties["DeadLetterReason"] == "bad"
        assert list(await here.broker.peek(ORDERS)) == []


async def test_nobody_makes_deletes_or_fills_a_dead_letter_queue_by_itself(autojump_clock):
    async with harness() as here:
        for operation in (
            lambda: here.broker.create_queue(ORDERS.dead_letter, QueueProperties()),
            lambda: here.broker.delete_queue(ORDERS.dead_letter),
            lambda: here.broker.send(ORDERS.dead_letter, numbered(1)),
        ):
            with pytest.raises(InvalidRequest):
                await operation()


async def test_every_request_is_signed_and_names_its_version(autojump_clock):
    async with harness() as here:
        await here.broker.create_queue(ORDERS, QueueProperties())

        for request in here.account.asked:
            headers: Headers = request.headers
            assert (headers.get("Authorization") or "").startswith("SharedKey devstoreaccount1:")
            assert headers.get("x-ms-version") == "2020-12-06"


async def test_a_put_and_a_delete_let_no_turn_pass_but_those_of_their_answers() -> None:
    task = trio.lowlevel.current_task().name
    async with served() as port, client(port) as broker:
        await broker.create_queue(ORDERS, QueueProperties())  # the connection is open
        with steps_of_tasks() as of_put:
            await broker.send(ORDERS, numbered(1))
        async with broker.open_receiver(ORDERS) as receiver:
            delivery = await take_one(receiver)
            with steps_of_tasks() as of_delete:
                await receiver.settle(delivery, Complete())

    assert of_put[task] == 1
    assert of_delete[task] == 2  # the lock of the delivery's requests takes one
