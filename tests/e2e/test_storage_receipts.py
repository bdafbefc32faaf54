"""A receipt before a storage account is the service's own: the gateway's restart doesn't matter."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.capabilities import DeletesSent, HidesMessages, Polls, SettlesByToken
from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost, MessageNotFound
from gateway.domain.message import Complete, Delivery, Message
from gateway.offering import required
from gateway.ports import Receiver
from tests.brokers.storage_queue.azurites import client
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.storage_pair import config_of, provision, two_azurites
from tests.harness.azurite import KEY
from tests.harness.patience import PATIENCE
from tests.harness.secret_files import write_secret

pytestmark = [pytest.mark.slow, pytest.mark.live]

ORDERS: Final = EntityPath("orders")
LONG: Final = timedelta(seconds=300)
QUICK: Final = 1.0  # seconds: two looks that wait for messages take two at least


def patient(port: int) -> StorageQueueBroker:
    """A client whose connects outlast a stall of the machine: each request is made once."""
    return client(port, connect_timeout=PATIENCE)


@asynccontextmanager
async def receiver_at(gateway: GatewayProcess) -> AsyncIterator[Receiver]:
    async with patient(gateway.port) as broker, broker.open_receiver(ORDERS) as receiver:
        yield receiver


async def get(gateway: GatewayProcess) -> list[tuple[bytes, Delivery]]:
    """Get messages that are hidden for a long time; return their receipts, too."""
    async with receiver_at(gateway) as receiver:
        found = await required(receiver, Polls).poll(32, LONG)
        by_token = required(receiver, SettlesByToken)
        return [(by_token.hand_out(each) or b"", each) for each in found]


async def delete(gateway: GatewayProcess, receipt: bytes) -> None:
    async with receiver_at(gateway) as receiver:
        with required(receiver, SettlesByToken).adopt(receipt) as delivery:
            await receiver.settle(delivery, Complete())


async def test_receipts_hiding_and_counts_are_the_services_own(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with two_azurites(tmp_path) as servers:
        write_secret(tmp_path / "key", KEY)
        config = config_of(servers, tmp_path / "key", is_patient=True)
        await provision(gateways, config)
        one, other = [await gateways.start(config, name=name) for name in ("one", "other")]
        async with patient(one.port) as broker:
            await broker.send(ORDERS, [Message(body=b"a job"), Message(body=b"another")])

        (first, taken), (second, _) = await get(one)
        assert await one.stop() == 0
        await one.start()
        looked = math.inf
        with trio.fail_after(PATIENCE):
            while looked >= QUICK:  # as long as the machine stalls
                began = trio.current_time()
                assert await get(one) == await get(other) == []  # still hidden
                looked = trio.current_time() - began
        await delete(one, first)
        async with receiver_at(other) as receiver:
            with required(receiver, SettlesByToken).adopt(second) as delivery:
                await required(receiver, HidesMessages).hide(delivery, timedelta(0))
        [(third, again)] = await get(other)
        await delete(one, third)

        async with patient(servers.primary_port) as account:
            assert (await account.inspect(ORDERS)).active == 0
        assert (taken.delivery_count, again.delivery_count) == (1, 2)


async def test_the_receipt_of_a_put_works_after_a_restart_and_at_another_gateway(
    gateways: Gateways, tmp_path: Path
) -> None:
    async with two_azurites(tmp_path) as servers:
        write_secret(tmp_path / "key", KEY)
        config = config_of(servers, tmp_path / "key", is_patient=True)
        await provision(gateways, config)
        one, other = [await gateways.start(config, name=name) for name in ("one", "other")]
        receipts = [await put(one, body) for body in (b"first", b"second", b"third")]

        await delete_sent(one, receipts[0])
        assert await one.stop() == 0
        await one.start()
        await delete_sent(one, receipts[1])
        [(token, taken)] = await get(other)
        with pytest.raises((LockLost, MessageNotFound)):  # the account says which
            await delete_sent(other, receipts[2])
        await delete(other, token)

        async with patient(servers.primary_port) as account:
            assert (await account.inspect(ORDERS)).active == 0
        assert taken.message.body == b"third"


async def put(gateway: GatewayProcess, body: bytes) -> object:
    """Put a message; return its receipt."""
    async with patient(gateway.port) as broker:
        return await required(broker, DeletesSent).send_deletable(ORDERS, Message(body=body))


async def delete_sent(gateway: GatewayProcess, receipt: object) -> None:
    async with patient(gateway.port) as broker:
        await required(broker, DeletesSent).delete_sent(ORDERS, receipt)
