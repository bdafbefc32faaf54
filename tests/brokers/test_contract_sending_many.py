"""The contract of a namespace with several batches in flight, beyond `test_contract.py`."""

import attrs
import pytest
import trio

from gateway.capabilities import SendsMany, Sessions
from gateway.domain.entity import EntityPath, EntityStatus
from gateway.domain.errors import (
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    QuotaExceeded,
    SessionRequired,
)
from gateway.domain.message import Message
from gateway.offering import required
from tests.brokers.contract import ids, make, numbered, take_all
from tests.brokers.kinds import Capability, needs

TAKEN = type(None)
LARGE = [Message(message_id="large", body=bytes(2 * 1024 * 1024))]


async def verdicts(broker, queue, *batches):
    return [
        type(verdict) for verdict in await required(broker, SendsMany).send_many(queue, batches)
    ]


async def received(broker, queue, wanted):
    async with broker.open_receiver(queue) as receiver:
        return ids(await take_all(receiver, wanted))


@needs(Capability.SENDS_MANY)
async def test_several_batches_are_taken_at_once_in_their_order(broker, orders):
    found = await verdicts(broker, orders, numbered(1, 2), numbered(3), [], numbered(4, 5))

    assert found == [TAKEN] * 4
    assert await received(broker, orders, 5) == ["1", "2", "3", "4", "5"]


@needs(Capability.SENDS_MANY)
async def test_sending_nothing_at_once_is_done(broker, orders):
    assert list(await required(broker, SendsMany).send_many(orders, [])) == []


@needs(Capability.SENDS_MANY | Capability.SIZES | Capability.MANAGEMENT)
async def test_a_batch_that_is_refused_is_refused_whole_and_alone(broker, orders):
    found = await verdicts(broker, orders, numbered(1), [*numbered(2), *LARGE], numbered(3, 4))

    assert found == [TAKEN, MessageTooLarge, TAKEN]
    assert await received(broker, orders, 3) == ["1", "3", "4"]


@needs(Capability.SENDS_MANY | Capability.SIZES | Capability.COUNTS)
async def test_of_a_batch_that_is_refused_nothing_is_stored(broker, orders):
    await verdicts(broker, orders, numbered(1), [*numbered(2), *LARGE], numbered(3, 4))

    assert (await broker.inspect(orders)).active == 3


@needs(Capability.SENDS_MANY)
async def test_a_batch_that_cannot_be_stored_is_refused_alone(broker, orders):
    strange = Message(message_id="2", body=b"x", properties={"key": object()})

    found = await verdicts(broker, orders, numbered(1), [strange], numbered(3))

    assert found == [TAKEN, InvalidRequest, TAKEN]
    assert await received(broker, orders, 2) == ["1", "3"]


@needs(Capability.SENDS_MANY | Capability.SIZES | Capability.MANAGEMENT)
async def test_a_batch_that_is_refused_has_the_error_of_a_send(broker, orders):
    with pytest.raises(MessageTooLarge) as alone:
        await broker.send(orders, LARGE)

    _, among_others = await required(broker, SendsMany).send_many(orders, [numbered(1), LARGE])

    assert str(among_others) == str(alone.value)


@needs(Capability.SENDS_MANY | Capability.QUOTA)
async def test_a_message_that_does_not_fit_leaves_room_for_the_next_batch(broker):
    queue = await make(broker, max_size_in_megabytes=1)
    first, second, third = (
        [Message(message_id=str(number), body=bytes(size))]
        for number, size in enumerate((600_000, 600_000, 300_000))
    )

    found = await verdicts(broker, queue, first, second, third)

    assert found == [TAKEN, QuotaExceeded, TAKEN]
    assert await received(broker, queue, 2) == ["0", "2"]


@needs(Capability.SENDS_MANY | Capability.SESSIONS)
async def test_a_batch_without_a_session_is_refused_where_one_is_needed(broker):
    queue = await make(broker, requires_session=True)
    one, two, three = (Message(message_id=each, session_id="s") for each in ("1", "2", "3"))

    found = await verdicts(broker, queue, [one], [attrs.evolve(two, session_id=None)], [three])

    assert found == [TAKEN, SessionRequired, TAKEN]
    async with required(broker, Sessions).open_session(queue, "s") as session:
        assert ids(await take_all(session, 2)) == ["1", "3"]


@needs(Capability.SENDS_MANY | Capability.DUPLICATES | Capability.SIZES)
async def test_duplicates_of_other_batches_are_taken_and_not_delivered(broker):
    queue = await make(broker, requires_duplicate_detection=True)

    found = await verdicts(broker, queue, numbered(1), numbered(1, 2))
    found += await verdicts(broker, queue, numbered(2, 3), LARGE, numbered(3, 4))

    assert found == [TAKEN, TAKEN, TAKEN, MessageTooLarge, TAKEN]
    assert await received(broker, queue, 4) == ["1", "2", "3", "4"]
    assert (await broker.inspect(queue)).active == 4


@needs(Capability.SENDS_MANY)
async def test_calls_side_by_side_are_done_in_the_order_in_which_they_are_made(broker, orders):
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(
                required(broker, SendsMany).send_many, orders, [numbered(number), numbered(-number)]
            )
            await trio.lowlevel.checkpoint()  # the call is made before the next one is

    expected = [str(each) for number in range(20) for each in (number, -number)]
    assert await received(broker, orders, 40) == expected


@needs(Capability.SENDS_MANY)
async def test_calls_that_are_cancelled_do_not_change_the_order(broker, orders):
    many = required(broker, SendsMany)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            with trio.CancelScope() as scope:
                scope.cancel()
                await many.send_many(orders, [numbered(-number), numbered(-number)])
            nursery.start_soon(many.send_many, orders, [numbered(number), numbered(number)])
            await trio.lowlevel.checkpoint()
    await many.send_many(orders, [numbered("last")])

    found = list[str]()
    async with broker.open_receiver(orders) as receiver:
        while "last" not in found:
            found += ids(await take_all(receiver, 1))
    expected = [str(number) for number in range(10) for _ in range(2)]
    assert [each for each in found if each == "0" or each in expected] == expected
    assert found[-1] == "last"


@needs(Capability.SENDS_MANY)
async def test_sending_several_batches_to_an_unknown_entity_is_refused(broker):
    found = await verdicts(broker, EntityPath("nothing"), numbered(1), numbered(2))

    assert found == [EntityNotFound] * 2


@needs(Capability.SENDS_MANY | Capability.DEAD_LETTER)
async def test_nobody_sends_several_batches_to_a_dead_letter_queue(broker, orders):
    assert await verdicts(broker, orders.dead_letter, numbered(1)) == [InvalidRequest]


@needs(Capability.SENDS_MANY | Capability.UPDATE)
async def test_a_disabled_queue_takes_none_of_several_batches(broker):
    queue = await make(broker, status=EntityStatus.SEND_DISABLED)

    assert await verdicts(broker, queue, numbered(1), numbered(2)) == [EntityDisabled] * 2
