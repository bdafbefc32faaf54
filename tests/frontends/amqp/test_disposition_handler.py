"""Many outcomes at once: the settlements of each step, and the answer to each client."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from gateway.domain.errors import LockLost
from gateway.domain.message import Message, ReceiveMode
from gateway.frontends.leases import Leases
from gateway.ports import Receiver
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.conftest import House
from tests.frontends.rest_client import ORDERS, wall_clock


@attrs.define(eq=False)
class OneByOne:
    """A receiver as it is where one settlement is one operation."""

    _inner: Receiver
    steps: list[int]

    async def receive(self, limit):
        return await self._inner.receive(limit)

    async def settle(self, delivery, settlement):
        self.steps.append(1)
        await self._inner.settle(delivery, settlement)

    async def renew(self, delivery):
        return await self._inner.renew(delivery)


@attrs.define(eq=False)
class Together(OneByOne):
    """
    A namespace that settles many at once; `late` are the numbers of those whose locks are lost.
    """

    late: set[int]
    pause: float

    async def settle_many(self, settlements):
        self.steps.append(len(settlements))
        await trio.sleep(self.pause)
        kept = [each for each in settlements if each[0].sequence_number not in self.late]
        found = dict(zip(map(id, kept), await self._inner.settle_many(kept), strict=True))
        return [found.get(id(each), LockLost("too late")) for each in settlements]


@attrs.define(eq=False)
class Counted:
    """The house's broker, with its receivers wrapped."""

    inner: object
    together: bool
    steps: list[int] = attrs.field(factory=list)
    late: set[int] = attrs.field(factory=set)
    pause: float = 0.0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @asynccontextmanager
    async def open_receiver(self, entity, mode=ReceiveMode.PEEK_LOCK):
        async with self.inner.open_receiver(entity, mode) as receiver:
            if self.together:
                yield Together(receiver, self.steps, self.late, self.pause)
            else:
                yield OneByOne(receiver, self.steps)


async def counting(house: House, *, together: bool, pause: float = 0.0) -> Counted:
    """Have the house receive through a broker that counts."""
    counted = Counted(house.broker, together, pause=pause)
    leases = Leases(counted, wall_clock)
    await house.nursery.start(leases.run)
    house.frontend = attrs.evolve(house.frontend, broker=counted, leases=leases)
    await house.broker.send(ORDERS, [Message(message_id=str(n)) for n in range(10)])
    return counted


async def left(house: House) -> list[str]:
    return [each.message.message_id for each in await house.broker.peek(ORDERS, limit=100)]


async def taken(sdk, count):
    link = await sdk.receiver(credit=count)
    return [await sdk.delivery(link) for _ in range(count)]


@pytest.mark.parametrize(("together", "steps"), [(True, [4]), (False, [1, 1, 1, 1])])
async def test_settlements_of_one_read_are_one_step_where_that_can_be(
    house, together, steps, autojump_clock
):
    counted = await counting(house, together=together)
    sdk = await house.client()
    transfers = await taken(sdk, 4)

    for transfer in transfers:
        sdk.engine.update(transfer.delivery, amqp.ACCEPTED)
    outcomes = [await sdk.outcome(transfer.delivery) for transfer in transfers]

    assert outcomes == [amqp.ACCEPTED] * 4
    assert counted.steps == steps
    assert await left(house) == ["4", "5", "6", "7", "8", "9"]


async def test_each_of_them_has_its_own_answer(house, autojump_clock):
    counted = await counting(house, together=True)
    sdk = await house.client()
    one, two, three = await taken(sdk, 3)
    counted.late.add(2)

    sdk.engine.update(one.delivery, amqp.ACCEPTED)
    sdk.engine.update(two.delivery, amqp.ACCEPTED)
    sdk.engine.update(three.delivery, amqp.Modified(delivery_failed=True))

    assert await sdk.outcome(one.delivery) == amqp.ACCEPTED
    refusal = await sdk.outcome(two.delivery)
    assert refusal.error.condition == "com.microsoft:message-lock-lost"
    assert await sdk.outcome(three.delivery) == amqp.Modified(delivery_failed=True)
    assert counted.steps == [3]


async def test_a_step_without_an_answer_is_confirmed_to_nobody(house, autojump_clock):
    await counting(house, together=True, pause=1000.0)
    sdk = await house.client()
    transfers = await taken(sdk, 2)

    for transfer in transfers:
        sdk.engine.update(transfer.delivery, amqp.ACCEPTED)
    answers = [await sdk.outcome(transfer.delivery) for transfer in transfers]

    assert [each.error.condition for each in answers] == ["com.microsoft:timeout"] * 2


async def test_settlements_while_two_steps_are_under_way_are_the_next_step(house, autojump_clock):
    counted = await counting(house, together=True, pause=1.0)
    sdk = await house.client()
    transfers = await taken(sdk, 5)

    for transfer in transfers:
        sdk.engine.update(transfer.delivery, amqp.ACCEPTED)
        await trio.sleep(0.1)
    outcomes = [await sdk.outcome(transfer.delivery) for transfer in transfers]

    assert outcomes == [amqp.ACCEPTED] * 5
    assert counted.steps == [1, 1, 3]


async def test_a_settlement_does_not_wait_for_the_answer_to_the_one_before(house, autojump_clock):
    await counting(house, together=True, pause=1.0)
    sdk = await house.client()
    first, second = await taken(sdk, 2)
    began = trio.current_time()

    sdk.engine.update(first.delivery, amqp.ACCEPTED)
    await trio.sleep(0.5)
    sdk.engine.update(second.delivery, amqp.ACCEPTED)
    await sdk.outcome(second.delivery)

    assert trio.current_time() - began == pytest.approx(1.5)


async def test_a_settlement_by_itself_waits_a_moment_for_more(house, autojump_clock):
    house.change(settle_delay=1.0)
    counted = await counting(house, together=True)
    sdk = await house.client()
    for transfer in await taken(sdk, 3):
        sdk.engine.settle(transfer.delivery, amqp.ACCEPTED)
        await trio.sleep(0.3)
    before = list(counted.steps)
    await trio.sleep(0.2)

    assert (before, counted.steps) == ([], [3])
    assert len(await left(house)) == 7


async def test_a_client_that_awaits_an_answer_does_not_wait_for_more(house, autojump_clock):
    house.change(settle_delay=1000.0)
    counted = await counting(house, together=True)
    sdk = await house.client()
    one, two = await taken(sdk, 2)
    sdk.engine.settle(one.delivery, amqp.ACCEPTED)
    await trio.sleep(1)

    with trio.fail_after(1):
        outcome = await sdk.settle(two, amqp.ACCEPTED)

    assert outcome == amqp.ACCEPTED
    assert counted.steps == [2]


async def test_as_many_as_are_taken_in_one_step_do_not_wait_for_more(house, autojump_clock):
    house.change(settle_delay=1000.0, max_taken=3)
    counted = await counting(house, together=True)
    sdk = await house.client()
    for transfer in await taken(sdk, 3):
        sdk.engine.settle(transfer.delivery, amqp.ACCEPTED)
    await trio.sleep(1)

    assert counted.steps == [3]


async def test_a_settlement_that_waits_for_more_is_done_although_the_client_goes(
    house, autojump_clock
):
    counted = await counting(house, together=True)
    sdk = await house.client()
    link = await sdk.receiver(credit=2)
    for _ in range(2):
        transfer = await sdk.delivery(link)
        sdk.engine.settle(transfer.delivery, amqp.ACCEPTED)
    sdk.engine.close()
    await trio.sleep(1)

    assert sum(counted.steps) == 2
    assert len(await left(house)) == 8


async def test_receive_and_delete_deletes_what_it_took_in_one_step(house, autojump_clock):
    counted = await counting(house, together=True)
    counted.late.add(3)
    sdk = await house.client()
    link = await sdk.receiver(credit=6, sender_settles=amqp.SenderSettles.SETTLED)

    received = [await sdk.delivery(link) for _ in range(5)]
    await trio.sleep(1)

    ids = [decode_delivery(each.payload).message.message_id for each in received]
    assert ids == ["0", "1", "3", "4", "5"]  # and not what is somebody else's now
    # The credit for what couldn't be taken away goes to the next one.
    assert counted.steps == [1, 2, 4]
