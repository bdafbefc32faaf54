import gc

import trio

from gateway.brokers.servicebus.broker import ServiceBusRestOptions, open_namespace
from gateway.capabilities import send_accepted_by
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import AcceptedBy, Message
from gateway.store.local.memory import MemoryBroker
from tests.brokers.servicebus.served import KEY, client, real_date, served
from tests.harness.patience import PATIENCE

ORDERS = EntityPath("orders")


async def test_receives_that_wait_leave_a_send_its_connection():
    options = ServiceBusRestOptions(key=KEY, max_connections=1)
    async with served() as port:
        url = f"//tester@127.0.0.1:{port}"
        async with open_namespace("servicebus+http", url, options, real_date) as broker:
            await broker.create_queue(ORDERS, QueueProperties())
            async with broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(receiver.receive, 1)
                await trio.sleep(0.1)
                with trio.fail_after(PATIENCE):
                    accepted_by = await send_accepted_by(broker, ORDERS, [Message()])
                nursery.cancel_scope.cancel()

    assert accepted_by is AcceptedBy.PRIMARY


class UnansweredProbes(MemoryBroker):
    """As a gateway whose primary hangs: sends are diverted, probes have no answer."""

    async def probe(self, entity):
        await trio.sleep_forever()


async def test_the_first_send_does_not_depend_on_the_primary_behind_a_gateway():
    async with served(kind=UnansweredProbes) as port:
        async with client(port) as operator:
            await operator.create_queue(ORDERS, QueueProperties())
        async with client(port) as producer:
            with trio.fail_after(PATIENCE):
                accepted_by = await send_accepted_by(producer, ORDERS, [Message()])

    assert accepted_by is AcceptedBy.PRIMARY


async def test_a_cancelled_client_leaves_no_connection_open():
    """The socket of a poll would be found by the garbage collector, which is an error here."""
    async with served() as port:
        with trio.CancelScope() as scope:
            async with client(port) as broker:
                await broker.create_queue(ORDERS, QueueProperties())
                await broker.send(ORDERS, [Message(message_id="m1")])
                async with broker.open_receiver(ORDERS) as receiver:
                    await receiver.receive(1)
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

        gc.collect()
        assert scope.cancelled_caught
