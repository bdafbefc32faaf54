"""Producers record the outcome of each send."""

import attrs
import pytest
import trio

from gateway.checker.operations import Acked, Failed, Invoked, Unknown
from gateway.demo.traffic import DEADLINE, Traffic
from gateway.domain.entity import EntityPath
from gateway.domain.errors import OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy

ORDERS = EntityPath("orders")


@attrs.define
class Gateway:
    """
    Answers each send with the next entry: the accepting namespace, an error, or seconds of silence.
    """

    answers: list
    sent: list = attrs.field(factory=list)
    traffic: Traffic = attrs.field(factory=Traffic)

    async def send_diverting(self, entity, messages):
        await trio.lowlevel.checkpoint()
        self.sent.append((trio.current_time(), [message.message_id for message in messages]))
        answer = self.answers.pop(0)
        self.traffic.stopping = not self.answers
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await trio.sleep(answer)
            return AcceptedBy.PRIMARY
        return answer

    async def produce(self, rate=10.0, **options):
        await self.traffic.produce(self, ORDERS, "p", rate, **options)


def kinds(traffic):
    return [type(record) for record in traffic.records if not isinstance(record, Invoked)]


async def test_each_answer_is_recorded_as_what_it_is(autojump_clock):
    gateway = Gateway(
        [AcceptedBy.PRIMARY, AcceptedBy.BACKLOG, Unavailable("x"), OutcomeUnknown("y")]
    )

    await gateway.produce()

    assert kinds(gateway.traffic) == [Acked, Acked, Failed, Unknown]
    assert (gateway.traffic.sent, gateway.traffic.acknowledged, gateway.traffic.errors) == (4, 2, 2)
    assert gateway.traffic.accepted_by_counts == {AcceptedBy.PRIMARY: 1, AcceptedBy.BACKLOG: 1}
    assert gateway.traffic.first_diverted == pytest.approx(0.1)


async def test_an_answer_that_does_not_come_is_unknown(autojump_clock):
    gateway = Gateway([2 * DEADLINE])

    await gateway.produce()

    assert kinds(gateway.traffic) == [Unknown]
    assert trio.current_time() == pytest.approx(DEADLINE)


async def test_a_send_is_recorded_as_invoked_before_it_is_sent(autojump_clock):
    gateway = Gateway([1.0, AcceptedBy.PRIMARY])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.produce)
        await trio.sleep(0.5)
        waiting = list(gateway.traffic.records)
        under_way = gateway.traffic.under_way

    assert [type(record) for record in waiting] == [Invoked]
    assert (under_way, gateway.traffic.under_way) == (1, 0)


async def test_a_producer_does_not_hurry_after_a_stall(autojump_clock):
    gateway = Gateway([AcceptedBy.PRIMARY, 3.0, AcceptedBy.PRIMARY, AcceptedBy.PRIMARY])

    await gateway.produce(rate=10.0)

    moments = [moment for moment, _ in gateway.sent]
    assert moments == pytest.approx([0.0, 0.1, 3.1, 3.2])
    assert gateway.traffic.longest_stall == pytest.approx(3.0)


async def test_a_batch_has_ids_of_its_own_and_one_verdict(autojump_clock):
    gateway = Gateway([AcceptedBy.PRIMARY, OutcomeUnknown("y")])

    await gateway.produce(batch=3)

    assert [ids for _, ids in gateway.sent] == [["p-1", "p-2", "p-3"], ["p-4", "p-5", "p-6"]]
    assert kinds(gateway.traffic) == [Acked] * 3 + [Unknown] * 3
    assert gateway.traffic.sent == 6
