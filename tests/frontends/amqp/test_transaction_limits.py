"""Open transactions take a limited share of their gateway's memory, and give all of it back."""

from typing import Any
from uuid import uuid4

import pytest
import trio

from gateway.capabilities import (
    TransactedCancellation,
    TransactedSend,
    TransactedSettlement,
    TransactedState,
)
from gateway.domain.errors import QuotaExceeded, TransactionTimeout, TransactionUnknown
from gateway.domain.message import Complete, Defer, Delivery, Described, Message, ValueBody, symbol
from gateway.frontends.amqp.pending import Pending
from gateway.frontends.amqp.transactions import (
    Enlisted,
    Transaction,
    Transactions,
    memory_of_messages,
    memory_of_settlement,
)
from gateway.frontends.options import AmqpOptions
from gateway.wire.amqp.events import LinkId, TransactionalState
from tests.frontends.amqp.conftest import House
from tests.frontends.amqp.transactions import LIMIT, condition, controller_of
from tests.frontends.rest_client import ORDERS

LINK = LinkId(1)


def transactions_of(nursery: trio.Nursery, **options: Any) -> Transactions:
    return Transactions(AmqpOptions(**options), uuid4, nursery, Pending(10, 10))


def enlisted(token: str) -> Enlisted:
    delivery = Delivery(message=Message(), sequence_number=1, lock_token=token)
    receiver: Any = None  # nothing is committed
    work = TransactedSettlement(receiver, delivery, Complete())
    return Enlisted(lock_token=token, work=work, settled=lambda: None)


def rolled_back(transactions: Transactions) -> Transaction:
    ended = transactions.declare(LINK)
    transactions.release(transactions.discharge(ended.id, LINK))
    return ended


def ended_with_its_link(transactions: Transactions) -> Transaction:
    ended = transactions.declare(LINK)
    transactions.roll_back_all(LINK)
    return ended


@pytest.mark.parametrize("end", [rolled_back, ended_with_its_link])
async def test_a_settlement_that_comes_after_the_end_of_its_transaction_leaves_nothing(
    end: Any, nursery: trio.Nursery
) -> None:
    """A request to $management finds its transaction, which ends before the request continues."""
    transactions = transactions_of(nursery, max_transaction_bytes=300)
    ended = end(transactions)

    with pytest.raises(TransactionUnknown):
        transactions.add_settlement(ended, enlisted("token"))

    transactions.add_settlement(transactions.declare(LINK), enlisted("token"))


async def test_a_settlement_that_comes_after_the_timeout_of_its_transaction_is_refused(
    nursery: trio.Nursery, autojump_clock: trio.abc.Clock
) -> None:
    transactions = transactions_of(nursery)
    late = transactions.declare(LINK)
    transactions.add_settlement(late, enlisted("one"))
    await trio.sleep(AmqpOptions().transaction_timeout + 1)

    with pytest.raises(TransactionTimeout):
        transactions.add_settlement(late, enlisted("two"))


async def test_the_states_of_sessions_count_with_their_bytes(nursery: trio.Nursery) -> None:
    transactions = transactions_of(nursery, max_transaction_bytes=1000)
    receiver: Any = None  # nothing is committed
    open_ = transactions.declare(LINK)

    transactions.add_state(open_, TransactedState(receiver, bytes(900)))
    with pytest.raises(QuotaExceeded):
        transactions.add_state(open_, TransactedState(receiver, None))


async def test_scheduled_and_cancelled_messages_count_each(nursery: trio.Nursery) -> None:
    transactions = transactions_of(nursery, max_transaction_work=5)
    open_ = transactions.declare(LINK)

    transactions.add_schedule(open_, TransactedSend(ORDERS, [Message()] * 3))
    transactions.add_cancellation(open_, TransactedCancellation(ORDERS, [1, 2]))
    with pytest.raises(QuotaExceeded):
        transactions.add_cancellation(open_, TransactedCancellation(ORDERS, [3]))


async def test_a_message_counts_with_the_memory_that_its_values_take(house: House) -> None:
    """An empty list has one byte, and takes sixty times as many."""
    house.change(max_transaction_bytes=100_000)
    limited = await controller_of(await house.client())
    orders = await limited.sdk.sender()

    async def send(value: Any) -> Any:
        state = TransactionalState(txn_id=await limited.declare())
        sent = limited.sdk.transfer(orders, Message(body=ValueBody(value)), state=state)
        return await limited.sdk.outcome(sent)

    assert condition(await send([[]] * 5000)) == LIMIT
    assert isinstance(await send("x" * 50_000), TransactionalState)


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ("text", 2),
        ([1, 2, 3], 5),
        ({"a": [1], "b": {}}, 7),
        (Described(symbol("d"), [1]), 5),
    ],
)
def test_each_value_of_properties_counts_whatever_is_around_it(value: Any, values: int) -> None:
    message, settlement = Message(properties={"p": value}), Defer(properties={"p": value})
    plain = memory_of_messages([Message()], 1000)

    assert memory_of_messages([message], 1000) - plain == 64 * values
    assert memory_of_settlement(settlement) == 256 + 64 * values
