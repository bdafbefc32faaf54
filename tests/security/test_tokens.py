"""A client can't guess a lock token or a pop receipt from others that it has seen."""

import base64
import random

import attrs
import pytest
from trio.testing import MockClock

from gateway.app.runtime import Runtime
from gateway.brokers.lock_tokens import lock_tokens
from gateway.brokers.storage_queue.deliveries import Numbers
from gateway.config.kinds import BrokerDependencies, build
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import InvalidRequest, LockLost, MessageNotFound
from gateway.domain.message import Message, ReceiveMode
from gateway.domain.storage_queue import PopReceipt, StorageAccount
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.messages import read_receipt, write_receipt
from tests.frontends.storage_client import open_client
from tests.harness.clocks import VirtualClock
from tests.store.embedded.stores import ORDERS


class Known(random.Random):
    """A generator whose numbers can be told."""

    asked = 0

    def getrandbits(self, k: int, /) -> int:
        self.asked += 1
        return self.asked


def token_of(number: int) -> str:
    source = Known(0)
    source.asked = number - 1
    return lock_tokens(source)()


def test_chance_comes_from_the_operating_system_where_nobody_gives_another_generator() -> None:
    runtime = Runtime()

    for part in ("east", "syphon", "claims"):
        assert isinstance(runtime.rng(part), random.SystemRandom)
    assert isinstance(Runtime(generator=Known).rng("east"), Known)


def test_two_processes_give_no_token_that_the_other_one_gives() -> None:
    tokens = [lock_tokens(Runtime().rng("east"))() for _ in range(1000)]

    assert len(set(tokens)) == 1000


@pytest.mark.parametrize("kind", ["memory:", "embedded:{}/store.db"])
async def test_lock_tokens_of_a_namespace_are_of_the_generator_that_it_is_given(
    kind: str, tmp_path
) -> None:
    rng = Known(0)
    dependencies = BrokerDependencies(clock=VirtualClock(), rng=rng, observer=Runtime().observer)
    async with build(kind.format(tmp_path), "east", dependencies) as broker:
        await broker.create_queue(ORDERS, QueueProperties())
        await broker.send(ORDERS, [Message(body=b"")])
        before = rng.asked
        async with broker.open_receiver(ORDERS, ReceiveMode.PEEK_LOCK) as receiver:
            (taken,) = await receiver.receive(1)

    assert taken.lock_token == token_of(before + 1)


def test_lock_tokens_of_an_account_of_storage_are_of_its_generator_too() -> None:
    assert Numbers(VirtualClock(), Known(0)).new_token() == token_of(1)


def by_keys(*keys: bytes):
    account = StorageAccount(name="contoso", keys=keys)
    return Accounts([account], wall_clock=VirtualClock()).marks


def test_a_pop_receipt_is_read_only_as_it_was_written_for_its_message() -> None:
    receipt, marks = PopReceipt(7, 9, 1), by_keys(b"one", b"two")
    written = write_receipt("a", receipt, marks)
    whole = base64.b64decode(written)

    assert read_receipt(written, "a", marks) == receipt
    assert read_receipt(written, "A", marks) == receipt
    assert read_receipt(written, "b", marks) is None
    for place in range(len(whole)):
        for bit in range(8):
            forged = bytearray(whole)
            forged[place] ^= 1 << bit
            assert read_receipt(base64.b64encode(forged).decode(), "a", marks) is None
    for length in range(len(whole)):
        cut = base64.b64encode(whole[:length]).decode()
        assert read_receipt(cut, "a", marks) is None
    for text in (f"{written}\n", f"\x01{written}", f"{written}\0", " ", "ä"):
        assert read_receipt(text, "a", marks) is None


def test_a_pop_receipt_outlives_the_exchange_of_the_other_key() -> None:
    receipt = write_receipt("a", PopReceipt(7, 9), by_keys(b"one", b"two"))

    assert read_receipt(receipt, "a", by_keys(b"three", b"one")) == PopReceipt(7, 9)
    assert read_receipt(receipt, "a", by_keys(b"three", b"two")) is None


async def test_a_client_that_knows_all_of_a_receipt_but_no_key_settles_no_message_of_others(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        await client.put("victim")
        (victim,) = await client.get()
        packed = base64.b64decode(victim.pop_receipt or "")
        forged = write_receipt(
            victim.message_id,
            read_receipt(
                victim.pop_receipt or "", victim.message_id, client.frontend.accounts.marks
            ),
            by_keys(b"a guess"),
        )
        assert base64.b64decode(forged)[:20] == packed[:20]
        for receipt in (forged, base64.b64encode(packed[:20] + bytes(16)).decode()):
            with pytest.raises((LockLost, InvalidRequest, MessageNotFound)):
                await client.delete(attrs.evolve(victim, pop_receipt=receipt))
        await client.delete(victim)
