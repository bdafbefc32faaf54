"""Senders and receivers meet a RabbitMQ in trouble, on real nodes."""

import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)

import attrs
import pytest
import trio
import trio.testing

from gateway.brokers.rabbitmq.broker import RabbitmqBroker
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    NotAuthorized,
    Outcome,
    OutcomeUnknown,
    PartlyAccepted,
    QuotaExceeded,
    Unavailable,
    Unreachable,
)
from gateway.domain.message import Abandon, Complete, Delivery, Message
from gateway.ports import Receiver
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.chaos_proxy import BlackHole, ChaosProxy, DeadLinks, Link, Pass, ResetAtOnce
from tests.harness.folders import in_memory
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import (
    USER,
    USERS,
    LastingNode,
    add_user,
    delete_user,
    keep_queues,
    limit_memory,
    make,
    set_rights,
)
from tests.harness.servers import frozen

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
SENDERS = 50
DIALS = 7  # that failed: the pause after them is 5 s, 30 % more or less
SHORTEST_PAUSE = 3.5
GIVEN_UP = 2.25  # seconds; after that a pair diverts a send
# For a node of a busy machine, too. A dial ends before a silence does: that is twice the heartbeat.
IMPATIENT = {"heartbeat": 2.0, "connect_timeout": 3.0}


def lasting_node(
    factory: pytest.TempPathFactory, name: str, *settings: str
) -> Iterator[LastingNode]:
    with in_memory(factory.mktemp(name)) as folder:
        node = LastingNode(folder=folder, name=name, settings=settings)
        node.begin()
        yield node
        node.end()


@pytest.fixture(scope="module")
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LastingNode]:
    """A node that is killed, and that refuses: no other module's tests share it."""
    yield from lasting_node(tmp_path_factory, "own")


@pytest.fixture(scope="module")
def narrow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LastingNode]:
    """A node with few channels for each connection."""
    yield from lasting_node(tmp_path_factory, "narrow", "channel_max = 8")


@asynccontextmanager
async def with_queues(
    node: LastingNode, *queues: EntityPath, **options: float
) -> AsyncIterator[RabbitmqBroker]:
    """A client of a node on which these queues are empty."""
    async with client(node.port, **options) as broker:
        for queue in queues:
            with suppress(EntityNotFound):
                await broker.delete_queue(queue)
            await broker.create_queue(queue, QueueProperties())
        yield broker


@asynccontextmanager
async def few_channels(node: LastingNode) -> AsyncIterator[None]:
    """Within the scope the user may have eight."""
    limits = '{"max-channels": 8}'
    await make(node.process, f"{USERS}:set_user_limits", USER, limits, USER)
    try:
        yield
    finally:
        with trio.move_on_after(PATIENCE, shield=True):
            await make(node.process, f"{USERS}:clear_user_limits", USER, "all", USER)


def message(number: object) -> Message:
    return Message(message_id=str(number), body=b"x")


async def taken_from(broker: RabbitmqBroker | Namespace, queue: EntityPath, last: str) -> list[str]:
    """Take all messages up to that one."""
    ids: list[str] = []
    async with broker.open_receiver(queue) as receiver:
        with trio.fail_after(PATIENCE):
            while last not in ids:
                for delivery in await receiver.receive(100):
                    ids.append(delivery.message.message_id)
                    await receiver.settle(delivery, Complete())
    return ids


async def send_patiently(
    broker: RabbitmqBroker | Namespace, queue: EntityPath, what: Message
) -> None:
    """Send the message again and again until the broker, which comes back, accepts it."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await broker.send(queue, [what])
            except (Unavailable, OutcomeUnknown):
                await trio.sleep(0.05)
            else:
                return


@attrs.define
class SendCounts:
    """The ids of the messages, by the outcome that their sender was told."""

    accepted: set[str] = attrs.field(factory=set)
    not_sent: set[str] = attrs.field(factory=set)
    unknown: set[str] = attrs.field(factory=set)
    errors: list[BrokerError] = attrs.field(factory=list)
    enough: trio.Event = attrs.field(factory=trio.Event)

    async def keep_sending(self, broker: RabbitmqBroker, numbers: Iterator[int]) -> None:
        """Send one message after the other, until a send fails."""
        for number in numbers:
            try:
                await broker.send(ORDERS, [message(number)])
            except BrokerError as error:
                known = self.unknown if error.outcome is Outcome.UNKNOWN else self.not_sent
                known.add(str(number))
                self.errors.append(error)
                return
            self.accepted.add(str(number))
            if len(self.accepted) > 200:
                self.enough.set()


async def test_a_killed_node_has_all_that_it_confirmed_and_nothing_that_was_not_sent(own_node):
    counts, numbers = SendCounts(), itertools.count()
    async with with_queues(own_node, ORDERS) as broker:
        await keep_queues(own_node.process)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(SENDERS):
                    nursery.start_soon(counts.keep_sending, broker, numbers)
                await counts.enough.wait()
                await own_node.kill()
        await own_node.start()
        await send_patiently(broker, ORDERS, message("last"))
        taken = await taken_from(broker, ORDERS, "last")

    assert len(counts.errors) == SENDERS
    assert all(error.counts_as_outage for error in counts.errors)
    assert counts.accepted <= set(taken)
    assert not counts.not_sent & set(taken)
    assert len(taken) == len(set(taken))


async def test_a_frozen_node_is_found_dead_and_used_again_when_it_goes_on(own_node):
    async with with_queues(own_node, ORDERS, **IMPATIENT) as broker:
        await broker.send(ORDERS, [message(1)])
        with trio.fail_after(PATIENCE):
            async with frozen(own_node.process):
                with pytest.raises(OutcomeUnknown, match="not a byte"):
                    await broker.send(ORDERS, [message(2)])
                with pytest.raises(Unavailable, match="no handshake within"):
                    await broker.send(ORDERS, [message(3)])
                with pytest.raises(Unavailable):
                    await broker.probe(ORDERS)
        await send_patiently(broker, ORDERS, message("last"))
        taken = await taken_from(broker, ORDERS, "last")

    assert "1" in taken
    assert "3" not in taken


@attrs.frozen
class Completing:
    """A completion whose answer doesn't come: its node is frozen."""

    receiver: Receiver
    delivery: Delivery  # that is completed
    other: Delivery  # that isn't


@asynccontextmanager
async def completing_into_a_freeze(
    rabbits: Nodes, namespace: Namespace, broker: RabbitmqBroker
) -> AsyncIterator[Completing]:
    await namespace.create_queue(ORDERS, QueueProperties())
    await namespace.send(ORDERS, [message("completed"), message("other")])
    async with broker.open_receiver(namespace.inside(ORDERS)) as receiver:
        taken: list[Delivery] = []
        while len(taken) < 2:
            taken += await receiver.receive(2)
        async with frozen(rabbits.process("primary")):
            with trio.move_on_after(0.5) as scope:
                await receiver.settle(taken[0], Complete())
            assert scope.cancelled_caught
            yield Completing(receiver, *taken)


async def test_a_completion_into_a_frozen_node_is_known_once_the_node_goes_on(rabbits):
    async with rabbits.namespace("primary") as namespace:
        inside = namespace.broker
        with trio.fail_after(PATIENCE):
            async with completing_into_a_freeze(rabbits, namespace, inside) as frozen_node:
                receiver, delivery = frozen_node.receiver, frozen_node.delivery
                with pytest.raises(OutcomeUnknown):
                    await receiver.settle(delivery, Abandon())
                with pytest.raises(OutcomeUnknown):
                    await receiver.renew(delivery)
                with trio.move_on_after(0.5) as again:
                    await receiver.settle(delivery, Complete())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receiver.settle, delivery, Complete())
                    os.kill(rabbits.process("primary").pid, signal.SIGCONT)
                await receiver.settle(frozen_node.other, Complete())

            assert again.cancelled_caught
            await namespace.send(ORDERS, [message("last")])
            assert await taken_from(namespace, ORDERS, "last") == ["last"]


async def test_a_completion_before_the_connection_is_lost_is_unknown_and_all_others_are_lost(
    rabbits,
):
    async with (
        rabbits.namespace("primary") as namespace,
        behind_a_proxy(rabbits) as (broker, proxy),
    ):
        with trio.fail_after(PATIENCE):
            async with completing_into_a_freeze(rabbits, namespace, broker) as frozen_node:
                receiver = frozen_node.receiver
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(is_unknown, receiver, frozen_node.delivery)
                    await trio.testing.wait_all_tasks_blocked()
                    proxy.reset_all()
                await is_unknown(receiver, frozen_node.delivery)
                many = [(frozen_node.delivery, Complete()), (frozen_node.other, Complete())]
                verdicts = await receiver.settle_many(many)
            await namespace.send(ORDERS, [message("last")])
            taken = await taken_from(namespace, ORDERS, "other")

    assert [type(verdict) for verdict in verdicts] == [OutcomeUnknown, LockLost]
    assert "other" in taken


async def is_unknown(receiver: Receiver, delivery: Delivery) -> None:
    with pytest.raises(OutcomeUnknown):
        await receiver.settle(delivery, Complete())


def behind_a_proxy(
    rabbits: Nodes,
) -> AbstractAsyncContextManager[tuple[RabbitmqBroker, ChaosProxy]]:
    return behind_a_proxy_at(rabbits.port("primary"))


@asynccontextmanager
async def behind_a_proxy_at(
    target: int, **options: object
) -> AsyncIterator[tuple[RabbitmqBroker, ChaosProxy]]:
    proxy = ChaosProxy("127.0.0.1", target, rng=random.Random(0))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.serve)
        async with client(port, **{**IMPATIENT, **options}) as broker:
            yield broker, proxy
        nursery.cancel_scope.cancel()


async def test_a_black_hole_leaves_an_unknown_outcome_and_is_left_behind(rabbits):
    async with (
        rabbits.namespace("primary") as namespace,
        behind_a_proxy(rabbits) as (broker, proxy),
    ):
        await namespace.create_queue(ORDERS, QueueProperties())
        inside = namespace.inside(ORDERS)
        await broker.send(inside, [message(1)])
        proxy.fault = BlackHole()
        with trio.fail_after(PATIENCE):
            with pytest.raises(OutcomeUnknown, match="had not confirmed"):
                await broker.send(inside, [message(2)])
            with pytest.raises(Unavailable):
                await broker.send(inside, [message(3)])
        proxy.fault = Pass()
        await send_patiently(broker, inside, message("last"))

        assert await taken_from(namespace, ORDERS, "last") == ["1", "last"]


async def test_a_connection_without_answers_is_replaced_before_it_is_found_dead(rabbits):
    async with (
        rabbits.namespace("primary") as namespace,
        behind_a_proxy_at(rabbits.port("primary"), heartbeat=PATIENCE) as (broker, proxy),
    ):
        await namespace.create_queue(ORDERS, QueueProperties())
        inside = namespace.inside(ORDERS)
        await broker.send(inside, [message(1)])
        await broker.probe(inside)
        proxy.fault = DeadLinks(frozenset(proxy.links))
        with trio.move_on_after(GIVEN_UP) as sent:
            await broker.send(inside, [message(2)])
        with trio.move_on_after(GIVEN_UP) as probed:
            await broker.probe(inside)
        assert sent.cancelled_caught
        assert probed.cancelled_caught
        with trio.fail_after(PATIENCE / 2):
            while probed.cancelled_caught:  # a prober asks again, too
                with trio.move_on_after(GIVEN_UP) as probed:
                    await broker.probe(inside)
            await broker.send(inside, [message("last")])

        assert await taken_from(namespace, ORDERS, "last") == ["1", "2", "last"]


async def test_a_receiver_that_waits_for_messages_goes_on_after_a_lost_connection(rabbits):
    async with (
        rabbits.namespace("primary") as namespace,
        behind_a_proxy(rabbits) as (broker, proxy),
    ):
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [message(1)])
        async with broker.open_receiver(namespace.inside(ORDERS)) as receiver:
            with trio.fail_after(PATIENCE):
                [before] = await receiver.receive(1)
                proxy.reset_all()
                [again] = await receiver.receive(1)
                with pytest.raises(LockLost):
                    await receiver.settle(before, Complete())
                await receiver.settle(again, Complete())

    assert (again.message.message_id, again.delivery_count) == ("1", 2)
    assert again.sequence_number == before.sequence_number


async def test_in_a_memory_alarm_nothing_is_taken_and_receiving_goes_on(rabbits):
    node = rabbits.process("secondary")
    async with rabbits.namespace("secondary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [message("before")])
        await limit_memory(node, 0.000001)
        try:
            with trio.fail_after(PATIENCE), pytest.raises(Unavailable, match="memory"):
                await send_until_refused(namespace)
            with pytest.raises(Unavailable, match="takes no messages now"):
                await namespace.probe(ORDERS)
            taken = await taken_from(namespace, ORDERS, "before")
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await limit_memory(node, 0.4)
        await send_patiently(namespace, ORDERS, message("last"))

    assert "before" in taken


async def send_until_refused(namespace: Namespace) -> None:
    """An alarm is told of after the first message that meets it, which may wait for its end."""
    for number in itertools.count():
        with trio.move_on_after(2):
            await namespace.send(ORDERS, [message(number)])
        assert number < 100


async def test_a_queue_that_was_deleted_is_not_there_and_takes_nothing(rabbits):
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [message(1)])
        await namespace.delete_queue(ORDERS)

        with pytest.raises(EntityNotFound):
            await namespace.send(ORDERS, [message(2), message(3)])
        with pytest.raises(EntityNotFound):
            await namespace.probe(ORDERS)
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [message("last")])

        assert await taken_from(namespace, ORDERS, "last") == ["last"]


async def test_a_waiting_receiver_is_told_that_the_queue_was_deleted(rabbits):
    async with rabbits.namespace("primary") as namespace, trio.open_nursery() as nursery:
        await namespace.create_queue(ORDERS, QueueProperties())

        async def wait() -> None:
            async with namespace.open_receiver(ORDERS) as receiver:
                with pytest.raises(EntityNotFound), trio.fail_after(PATIENCE):
                    await receiver.receive(1)

        nursery.start_soon(wait)
        with trio.fail_after(PATIENCE):
            while True:
                if await namespace.consumers(ORDERS):
                    break
                await trio.sleep(0.02)  # polled: another process decides
        await namespace.delete_queue(ORDERS)


async def test_a_full_queue_refuses_and_keeps_what_it_has(rabbits):
    async with rabbits.namespace("primary") as namespace:
        await namespace.declare(
            ORDERS,
            {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"},
        )
        accepted: list[str] = []
        with pytest.raises(QuotaExceeded):
            await fill(namespace, accepted)
        taken = await taken_from(namespace, ORDERS, accepted[-1])
        await namespace.send(ORDERS, [message("last")])

    assert taken == accepted


async def fill(namespace: Namespace, accepted: list[str]) -> None:
    for number in range(100):
        await namespace.send(ORDERS, [message(number)])
        accepted.append(str(number))


async def test_a_batch_that_is_refused_in_part_is_unknown_and_each_message_known(rabbits):
    async with rabbits.namespace("primary") as namespace:
        # Classic: a quorum queue takes some more.
        await namespace.declare(ORDERS, {"x-max-length": 3, "x-overflow": "reject-publish"})
        batch = [message(number) for number in range(200)]

        with pytest.raises(PartlyAccepted, match="were accepted, then") as caught:
            await namespace.send(ORDERS, batch)

        accepted = [str(each.message_id) for each in batch if caught.value.has_accepted(each)]
        taken = await taken_from(namespace, ORDERS, accepted[-1])
    assert isinstance(caught.value.why, QuotaExceeded)
    assert 0 < len(accepted) < 200
    assert taken == accepted


async def test_one_message_several_times_in_a_batch_has_one_outcome(rabbits):
    async with rabbits.namespace("primary") as namespace:
        await namespace.declare(ORDERS, {"x-max-length": 3, "x-overflow": "reject-publish"})

        with pytest.raises(OutcomeUnknown, match="were accepted, then") as caught:
            await namespace.send(ORDERS, [message(1)] * 200)

    assert not isinstance(caught.value, PartlyAccepted)


async def test_of_a_pipeline_into_a_full_queue_each_batch_has_its_own_verdict(rabbits):
    async with rabbits.namespace("primary") as namespace:
        # Classic: a quorum queue takes some more.
        await namespace.declare(ORDERS, {"x-max-length": 3, "x-overflow": "reject-publish"})

        verdicts = await namespace.send_many(ORDERS, [[message(number)] for number in range(200)])

        accepted = [str(number) for number, error in enumerate(verdicts) if error is None]
        assert {type(error) for error in verdicts if error is not None} == {QuotaExceeded}
        assert await taken_from(namespace, ORDERS, accepted[-1]) == accepted


@contextmanager
def refused() -> Iterator[pytest.ExceptionInfo[NotAuthorized]]:
    with pytest.raises(NotAuthorized) as caught:
        yield caught
    assert not caught.value.counts_as_outage


async def test_rights_that_were_taken_are_the_callers_fault(rabbits):
    node = rabbits.process("primary")
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        inside = namespace.inside(ORDERS)
        await add_user(node, "worker", "secret", "^$", "^amq\\.default$", "^$")
        async with client(namespace.port, user="worker", password="secret") as worker:
            await worker.send(inside, [message(1)])
            with refused():
                async with worker.open_receiver(inside) as receiver:
                    await receiver.receive(1)
            with refused():
                await worker.create_queue(EntityPath(f"{inside}2"), QueueProperties())
            await set_rights(node, "worker")
            # The broker checks again only for a new channel.
            async with client(namespace.port, user="worker", password="secret") as newcomer:
                with refused():
                    await newcomer.send(inside, [message(2)])
            await delete_user(node, "worker")
            with trio.fail_after(PATIENCE), refused():
                await send_patiently(worker, inside, message(3))
        await namespace.send(ORDERS, [message("last")])

        assert await taken_from(namespace, ORDERS, "last") == ["1", "last"]


@pytest.mark.parametrize("batch", [1, 5])
async def test_a_missing_right_is_told_to_each_of_many_senders(rabbits: Nodes, batch: int) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        async with powerless(rabbits, namespace) as worker, trio.open_nursery() as nursery:

            async def send(number: int) -> None:
                messages = [message(f"{number}-{each}") for each in range(batch)]
                with refused(), trio.fail_after(PATIENCE):
                    await worker.send(namespace.inside(ORDERS), messages)

            for number in range(SENDERS):
                nursery.start_soon(send, number)
        await namespace.send(ORDERS, [message("last")])

        assert await taken_from(namespace, ORDERS, "last") == ["last"]


@asynccontextmanager
async def powerless(rabbits: Nodes, namespace: Namespace) -> AsyncIterator[RabbitmqBroker]:
    """A client without any right."""
    node = rabbits.process("primary")
    await add_user(node, "powerless", "secret")
    try:
        async with client(namespace.port, user="powerless", password="secret") as broker:
            yield broker
    finally:
        with trio.move_on_after(PATIENCE, shield=True):
            await delete_user(node, "powerless")


async def test_a_wrong_password_is_refused(rabbits):
    async with client(rabbits.port("primary"), password="wrong") as broker:
        with refused():
            await broker.send(ORDERS, [message(1)])


@attrs.frozen
class Counted(Pass):
    """Counts connections."""

    connected: list[Link] = attrs.field(factory=list, eq=False)

    async def opened(self, link: Link) -> None:
        self.connected.append(link)
        await trio.lowlevel.checkpoint()


async def test_a_limit_of_connections_is_an_outage_and_no_storm(own_node):
    node = own_node.process
    async with with_queues(own_node, ORDERS) as early:
        limits = '{"max-connections": 1}'
        await make(node, "rabbit_vhost_limit:parse_set", "/", limits, USER)
        async with behind_a_proxy_at(own_node.port) as (late, proxy):
            proxy.fault = counted = Counted()
            for _ in range(100):
                with trio.fail_after(PATIENCE), pytest.raises(Unreachable, match="limit"):
                    await late.try_send(ORDERS, [message("refused")])
                await trio.sleep(0.01)
            async with late.open_receiver(ORDERS) as receiver:
                for _ in range(100):
                    with trio.fail_after(PATIENCE), pytest.raises(Unreachable, match="limit"):
                        await receiver.receive(1)
                    await trio.sleep(0.01)
            await make(node, "rabbit_vhost_limit:clear", "/", USER)
            await send_patiently(late, ORDERS, message("last"))

        assert await taken_from(early, ORDERS, "last") == ["last"]
    assert len(counted.connected) < 100


async def test_a_send_dials_in_the_pause_after_failed_dials_and_a_try_does_not(rabbits):
    async with (
        rabbits.namespace("primary") as namespace,
        behind_a_proxy(rabbits) as (broker, proxy),
    ):
        await namespace.create_queue(ORDERS, QueueProperties())
        inside = namespace.inside(ORDERS)
        await broker.send(inside, [message(1)])
        proxy.fault = refused = ResetAtOnce()
        proxy.reset_all()
        while len(refused.made) < DIALS:
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await broker.try_send(inside, [message(2)])
            await trio.sleep(0.01)
        proxy.fault = Pass()

        with pytest.raises(Unavailable):
            await broker.try_send(inside, [message(3)])
        began = trio.current_time()
        await broker.send(inside, [message(4)])
        assert trio.current_time() - began < SHORTEST_PAUSE
        assert await taken_from(namespace, ORDERS, "4") == ["1", "4"]


QUEUES = [EntityPath(f"q{number}") for number in range(18)]


async def test_a_small_channel_max_serves_all_queues(narrow_node):
    async with with_queues(narrow_node, *QUEUES) as broker:
        for queue in QUEUES:
            await broker.send(queue, [message("alone")])
        async with trio.open_nursery() as nursery:
            for queue in QUEUES:
                nursery.start_soon(broker.send, queue, [message("with others")])

        for queue in QUEUES:
            assert await taken_from(broker, queue, "with others") == ["alone", "with others"]


async def test_a_users_limit_of_channels_leaves_no_outcome_in_doubt(own_node):
    async with with_queues(own_node, *QUEUES[:12]) as broker:
        failures = []

        async def send_all(queue):
            for number in range(20):
                try:
                    await broker.send(queue, [message(f"{number}")])
                except Unavailable as error:  # not sent
                    failures.append(error)

        async with few_channels(own_node), trio.open_nursery() as nursery:
            for queue in QUEUES[:12]:
                nursery.start_soon(send_all, queue)
        counts = [(await broker.inspect(queue)).active for queue in QUEUES[:12]]

    assert sum(counts) == 12 * 20 - len(failures)
    assert len(failures) < 24


@attrs.define(eq=False)
class Holders:
    """Receivers that take the message of their queue, and hold it until all may complete."""

    broker: RabbitmqBroker
    may_complete: trio.Event = attrs.field(factory=trio.Event)
    holding: set[EntityPath] = attrs.field(factory=set)
    done: set[EntityPath] = attrs.field(factory=set)
    refusals: list[str] = attrs.field(factory=list)
    lost: int = 0
    news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    async def hold(self, queue: EntityPath) -> None:
        async with self.broker.open_receiver(queue) as receiver:
            while queue not in self.done:
                try:
                    [delivery] = await receiver.receive(1)
                except Unavailable as error:
                    self.refusals.append(str(error))
                    await trio.sleep(0.05)
                    continue
                self.holding.add(queue)
                self.news.unpark_all()
                try:
                    while not self.may_complete.is_set():
                        await receiver.renew(delivery)
                        with trio.move_on_after(0.1):
                            await self.may_complete.wait()
                    await receiver.settle(delivery, Complete())
                except LockLost:
                    self.lost += 1
                    self.holding.discard(queue)
                else:
                    self.done.add(queue)

    async def until_they_hold(self, number: int) -> None:
        while len(self.holding) < number:
            await self.news.park()


async def test_receivers_use_another_connection_when_channel_max_is_used_up(narrow_node):
    async with with_queues(narrow_node, *QUEUES) as broker:
        for queue in QUEUES:
            await broker.send(queue, [message(1)])
        holders = Holders(broker)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for queue in QUEUES:
                    nursery.start_soon(holders.hold, queue)
                await holders.until_they_hold(len(QUEUES))
                assert [(await broker.inspect(queue)).active for queue in QUEUES] == [0] * 18
                holders.may_complete.set()

    assert (holders.done, holders.lost, holders.refusals) == (set(QUEUES), 0, [])


async def test_a_users_limit_that_receivers_meet_costs_no_lock_and_makes_no_storm(own_node):
    queues = QUEUES[:12]
    async with with_queues(own_node, *queues) as early:
        for queue in queues:
            await early.send(queue, [message(1)])
    async with AsyncExitStack() as limited:
        await limited.enter_async_context(few_channels(own_node))
        async with behind_a_proxy_at(own_node.port) as (broker, proxy):
            proxy.fault = counted = Counted()
            holders = Holders(broker)
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    for queue in queues[:7]:
                        nursery.start_soon(holders.hold, queue)
                    await holders.until_they_hold(7)
                    for queue in queues[7:]:
                        await trio.sleep(0.1)  # RabbitMQ counts channels some milliseconds late
                        nursery.start_soon(holders.hold, queue)
                    await trio.sleep(5)
                    connected = len(counted.connected)
                    await trio.sleep(5)
                    for queue in queues:  # who has no channel keeps no request from its answer
                        await broker.probe(queue)
                    in_use = len(holders.holding)
                    await limited.aclose()
                    holders.may_complete.set()

    assert holders.done == set(queues)
    assert (holders.lost, in_use >= 6) == (0, True)
    assert len(counted.connected) - connected < 10
    assert all("limit" in each for each in holders.refusals)
