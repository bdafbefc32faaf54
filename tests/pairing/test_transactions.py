"""A transaction of a pair is its primary's alone: nothing of it is diverted."""

from datetime import timedelta
from functools import partial

import attrs
import pytest

from gateway.capabilities import Enlists, TransactedSend
from gateway.domain.errors import BrokerError, InvalidRequest, NotSupported, Outcome, Unavailable
from gateway.domain.message import AcceptedBy, Complete
from gateway.offering import required
from tests.harness.clocks import START
from tests.pairing.harness import BILLS, ORDERS, QUEUE, message, outcome_of


@pytest.fixture
async def pair(harness):
    pair = await harness.pair()
    return attrs.evolve(pair.broker, primary=harness.primary.store)


def counted(broker) -> list[tuple[str, str, int]]:
    return [(each.accepted_by, each.error, each.messages) for each in broker.sends.all()]


async def test_a_transaction_is_committed_on_the_primary(harness, pair):
    await pair.send(ORDERS, [message("old")])
    async with pair.open_receiver(ORDERS) as receiver:
        [old] = await receiver.receive(1)
        settlement = required(receiver, Enlists).enlist(old, Complete())
        await pair.commit([settlement, TransactedSend(ORDERS, [message("new")])])

    assert await harness.primary.ids() == ["new"]
    assert counted(pair) == [(AcceptedBy.PRIMARY.value, "", 2)]


async def test_a_message_without_an_id_gets_one(harness, pair):
    await pair.commit([TransactedSend(ORDERS, [attrs.evolve(message(), message_id=None)])])

    [there] = await harness.primary.deliveries()
    assert there.message.message_id is not None


async def test_nothing_of_a_transaction_is_diverted(harness, pair):
    pair.ways.states.force_over(BILLS)
    work = [TransactedSend(ORDERS, [message("1")]), TransactedSend(BILLS, [message("2")])]

    error = await outcome_of(partial(pair.commit, work))

    assert isinstance(error, Unavailable)
    assert error.outcome is Outcome.NOT_SENT
    assert "the primary's alone, and is never diverted" in str(error)
    assert await harness.primary.ids() == []
    assert await harness.secondary.ids(QUEUE) == []
    assert counted(pair) == [("", "Unavailable", 2)]


async def test_a_schedule_of_a_transaction_is_the_primarys(harness, pair):
    asked = message("1", scheduled=START + timedelta(hours=1))

    await pair.commit([await pair.enlist_schedule(ORDERS, [asked])])
    there = await harness.primary.ids()
    pair.ways.states.force_over(ORDERS)
    error = await outcome_of(partial(pair.enlist_schedule, ORDERS, [asked]))

    assert there == ["1"]
    assert isinstance(error, Unavailable)
    assert "only its primary can assign the sequence number" in str(error)


async def test_a_primary_that_is_down_begins_no_transaction(harness, pair):
    async def down() -> None:
        raise Unavailable("connection refused")

    harness.primary.store.check_transactions = down

    error = await outcome_of(pair.check_transactions)

    assert isinstance(error, Unavailable)
    assert "connection refused" in str(error)
    assert "never diverted" in str(error)


async def test_a_primary_without_transactions_has_none(harness):
    pair = await harness.pair()
    broker = attrs.evolve(pair.broker, primary=object())

    error = await outcome_of(broker.check_transactions)

    assert isinstance(error, NotSupported)


async def test_a_property_of_the_envelope_is_refused(harness, pair):
    forged = message(properties={"x-ms-path": "elsewhere"})

    error = await outcome_of(partial(pair.commit, [TransactedSend(ORDERS, [forged])]))

    assert isinstance(error, InvalidRequest)
    assert "x-ms-path" in str(error)


async def test_an_entity_that_keeps_its_order_isnt_sent_to(harness, pair):
    class Ordered:
        def keeps_order(self, entity: object) -> bool:
            return entity == BILLS

    broker = attrs.evolve(pair, delivery=Ordered())
    work = [TransactedSend(ORDERS, [message("1")]), TransactedSend(BILLS, [message("2")])]

    error = await outcome_of(partial(broker.commit, work))

    assert isinstance(error, BrokerError)
    assert "keeps its order" in str(error)
    assert await harness.primary.ids() == []
