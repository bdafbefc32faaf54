"""A transaction in a namespace over AMQP, when the network or the namespace fails in between."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from gateway.capabilities import Enlists, TransactedSend, TransactedWork, Transacts
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, LockLost, NotSupported, Outcome, OutcomeUnknown
from gateway.domain.message import Complete, Message
from gateway.frontends.amqp import frontend
from gateway.frontends.amqp.client import Client
from gateway.frontends.amqp.context import Context
from gateway.frontends.amqp.incoming import IncomingLink
from gateway.net.amqp.links import InFlight
from gateway.offering import required
from gateway.wire.amqp.events import ACCEPTED, DispositionReceived, TransactionalState
from tests.brokers.amqp.faults import Wire, failure_of, numbered, wired
from tests.brokers.amqp.served import client, served
from tests.harness.chaos_proxy import Pass

ORDERS, INVOICES = EntityPath("orders"), EntityPath("invoices")


@pytest.fixture
async def wire():
    async with wired() as wire:
        await wire.house.broker.create_queue(INVOICES, QueueProperties())
        yield wire


def sends(entity: EntityPath, *names: object) -> TransactedSend:
    return TransactedSend(entity, numbered(*names))


async def invoices(wire: Wire) -> list[str]:
    shown = await wire.house.broker.peek(INVOICES, limit=100)
    return [str(each.message.message_id) for each in shown]


class Commits:
    """The answers of the namespace to the commits that it gets."""

    def __init__(self, wire: Wire, *, done: bool) -> None:
        self._commit, self._done = wire.house.broker.commit, done
        self.asked = trio.Event()
        wire.house.broker.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, work: Sequence[TransactedWork]) -> None:
        if self._done:
            await self._commit(work)
        self.asked.set()
        await trio.sleep_forever()


@pytest.mark.parametrize("done", [True, False])
async def test_a_commit_whose_answer_is_lost_is_unknown(wire: Wire, done: bool) -> None:
    commits = Commits(wire, done=done)
    failures: list[BrokerError] = []

    async def commit() -> None:
        failures.append(await failure_of(wire.broker.commit([sends(ORDERS, 1)])))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await commits.asked.wait()
        wire.proxy.reset_all()

    assert [type(each) for each in failures] == [OutcomeUnknown]
    assert await wire.sent() == (["1"] if done else [])


async def test_a_cut_before_the_discharge_is_a_rollback_for_certain(wire: Wire) -> None:
    """The connection ends when the namespace has the work, and no discharge."""
    await wire.broker.commit([sends(ORDERS, "first")])
    frontend_sends = wire.broker
    cut = trio.Event()

    async def commit() -> BrokerError:
        return await failure_of(frontend_sends.commit([sends(ORDERS, 1), sends(INVOICES, 2)]))

    async def probe(entity: EntityPath) -> None:
        """A link to the second queue is attached in the middle of the commit."""
        wire.proxy.reset_all()
        wire.proxy.fault = Pass()
        cut.set()
        await trio.sleep_forever()

    wire.house.broker.probe = probe  # type: ignore[method-assign]
    error = await commit()

    assert cut.is_set()
    assert error.outcome is Outcome.NOT_SENT
    assert await wire.sent() == ["first"]
    assert await invoices(wire) == []


async def test_after_a_cut_the_next_transaction_is_committed(wire: Wire) -> None:
    await wire.broker.commit([sends(ORDERS, 1)])
    wire.proxy.reset_all()
    await trio.testing.wait_all_tasks_blocked(0.05)

    await wire.broker.check_transactions()
    await wire.broker.commit([sends(ORDERS, 2), sends(INVOICES, 3)])

    assert await wire.sent() == ["1", "2"]
    assert await invoices(wire) == ["3"]


async def test_a_delivery_whose_connection_has_ended_rolls_the_transaction_back(
    wire: Wire,
) -> None:
    await wire.broker.send(ORDERS, numbered(1))
    async with wire.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        work = required(receiver, Enlists).enlist(delivery, Complete())
        wire.proxy.reset_all()
        await trio.testing.wait_all_tasks_blocked(0.05)

        error = await failure_of(wire.broker.commit([work, sends(INVOICES, 2)]))

    assert isinstance(error, LockLost)
    assert await wire.sent() == ["1"]
    assert await invoices(wire) == []


async def test_a_delivery_that_is_settled_during_the_commit_rolls_the_transaction_back(
    wire: Wire,
) -> None:
    await wire.broker.send(ORDERS, numbered(1))
    check = wire.house.broker.check_transactions
    async with wire.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        work = required(receiver, Enlists).enlist(delivery, Complete())

        async def checks() -> None:
            wire.house.broker.check_transactions = check  # type: ignore[method-assign]
            await receiver.settle(delivery, Complete())
            await check()

        wire.house.broker.check_transactions = checks  # type: ignore[method-assign]
        error = await failure_of(wire.broker.commit([work, sends(INVOICES, 2)]))

    assert isinstance(error, LockLost)
    assert await wire.sent() == []
    assert await invoices(wire) == []


async def test_a_namespace_that_ends_the_session_of_transactions_gets_another_one(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[Context] = []

    def client_of(context: Context, *arguments: Any) -> Client:
        contexts.append(context)
        return Client(context, *arguments)

    monkeypatch.setattr(frontend, "Client", client_of)
    await wire.broker.commit([sends(ORDERS, 1)])
    for context in contexts:
        for link in context.links.values():
            if isinstance(link, IncomingLink):
                context.engine.end(link.session)
    await trio.testing.wait_all_tasks_blocked(0.05)

    await wire.broker.commit([sends(ORDERS, 2), sends(INVOICES, 3)])

    assert await wire.sent() == ["1", "2"]
    assert await invoices(wire) == ["3"]


async def test_after_a_rollback_the_delivery_is_settled_on_its_link(wire: Wire) -> None:
    await wire.broker.send(ORDERS, numbered(1))
    async with wire.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        work = required(receiver, Enlists).enlist(delivery, Complete())

        await failure_of(wire.broker.commit([work, sends(EntityPath("nowhere"), 2)]))
        await receiver.settle(delivery, Complete())

    assert await wire.sent() == []


async def test_a_settlement_doesnt_get_the_answer_of_an_earlier_transaction(wire: Wire) -> None:
    await wire.broker.send(ORDERS, numbered(1))
    async with wire.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        link, id_ = receiver.place_of(delivery)[1:]  # type: ignore[attr-defined]

        def enlist(txn_id: bytes) -> InFlight:
            asked: InFlight = link.enlist(id_, TransactionalState(txn_id=txn_id, outcome=ACCEPTED))
            return asked

        def answer(txn_id: bytes) -> None:
            state = TransactionalState(txn_id=txn_id, outcome=ACCEPTED)
            link.handle(DispositionReceived(link.id, id_, state, settled=False))

        first = enlist(b"first")
        link.withdraw(id_, first)
        second = enlist(b"second")
        link.withdraw(id_, first)
        answer(b"first")
        early = second.answered.is_set()
        answer(b"second")

    assert not early
    assert second.said is not None
    assert second.said.state == TransactionalState(txn_id=b"second", outcome=ACCEPTED)
    assert not first.answered.is_set()


async def test_a_cancelled_commit_leaves_nothing_behind(wire: Wire) -> None:
    commits = Commits(wire, done=False)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.broker.commit, [sends(ORDERS, 1)])
            await commits.asked.wait()
            scope.cancel()
    await wire.broker.send(ORDERS, numbered(2))

    assert await wire.sent() == ["2"]


async def test_commits_that_are_cancelled_at_their_beginning_leave_no_transaction_open(
    wire: Wire,
) -> None:
    """A namespace has a limit of them, for all clients of the gateway together."""
    await wire.broker.commit([sends(ORDERS, "first")])
    check = wire.house.broker.check_transactions
    for number in range(110):
        with trio.CancelScope() as scope:

            async def checks(ended: trio.CancelScope = scope) -> None:
                ended.cancel()
                await check()

            wire.house.broker.check_transactions = checks  # type: ignore[method-assign]
            await wire.broker.commit([sends(ORDERS, number)])
        assert scope.cancelled_caught
    wire.house.broker.check_transactions = check  # type: ignore[method-assign]

    await wire.broker.commit([sends(ORDERS, "last")])

    assert await wire.sent() == ["first", "last"]


async def test_a_namespace_without_transactions_says_so(wire: Wire) -> None:
    async def none() -> None:
        await trio.lowlevel.checkpoint()
        raise NotSupported("there are none")

    wire.house.broker.check_transactions = none  # type: ignore[method-assign]

    error = await failure_of(wire.broker.check_transactions())

    assert isinstance(error, NotSupported)
    assert "there are none" in str(error)


async def test_a_delivery_of_another_namespace_isnt_settled(wire: Wire) -> None:
    await wire.house.broker.send(ORDERS, numbered(1))
    async with wire.house.broker.open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        work = required(receiver, Enlists).enlist(delivery, Complete())

        error = await failure_of(wire.broker.commit([sends(ORDERS, 2), work]))

    assert isinstance(error, NotSupported)
    assert await wire.sent() == ["1"]


async def test_deliveries_of_several_connections_arent_settled_together() -> None:
    async with served() as house, client(house.port, max_links=2) as broker:
        for queue in (ORDERS, INVOICES):
            await house.broker.create_queue(queue, QueueProperties())
            await house.broker.send(queue, [Message()])
        async with broker.open_receiver(ORDERS) as one, broker.open_receiver(INVOICES) as other:
            work: list[Any] = []
            for receiver in (one, other):
                [delivery] = await receiver.receive(1)
                work.append(required(receiver, Enlists).enlist(delivery, Complete()))

            error = await failure_of(required(broker, Transacts).commit(work))

    assert isinstance(error, NotSupported)
    assert "several connections" in str(error)


async def test_many_transactions_at_once_are_each_whole(wire: Wire) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(30):
            work = [sends(ORDERS, number), sends(INVOICES, number)]
            nursery.start_soon(wire.broker.commit, work)

    assert sorted(map(int, await wire.sent())) == list(range(30))
    assert sorted(map(int, await invoices(wire))) == list(range(30))
