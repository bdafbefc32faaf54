"""Bodies in the store are encrypted, each under a key of its own that its reference carries."""

import random

import attrs
import pytest

from gateway.domain.errors import MessageError
from gateway.domain.message import Complete, Message
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.claim_check import ClaimCheck
from gateway.extensions.claims.compression import decompressed
from gateway.extensions.claims.encryption import TAG, decrypted, encrypted
from tests.extensions.claims.harness import LARGE, Harness, claimed, open_harness, virtual_time

pytestmark = virtual_time
NOISE = random.Random(7).randbytes(2000)  # can't be compressed
KEY = bytes(range(32))
NAME = f"{'a' * 32}.0"


def content(harness: Harness) -> dict[str, bytes]:
    return {name: harness.store.kept[name][0] for name in harness.store.bodies}


@pytest.mark.parametrize("body", [LARGE, NOISE])
async def test_an_encrypted_body_comes_back_as_it_was_sent(body: bytes) -> None:
    async with open_harness(encrypt=True, max_body=len(body) + 100) as harness:
        await harness.send(body)
        (raw,) = await harness.raw()
        found = await harness.take(settle=lambda _: Complete())

    assert found.message.body == body
    assert found.message.properties == {}
    claim = claims.claim_of(raw)
    assert claim.stored <= claim.size + TAG


async def test_the_store_has_nothing_that_can_be_read_without_the_reference() -> None:
    async with open_harness(encrypt=True, compression="none") as harness:
        await harness.send(b"canary" * 1000)
        (stored,) = content(harness).values()
    async with open_harness() as harness:
        await harness.send(b"canary" * 1000)
        (compressed,) = content(harness).values()

    assert b"canary" not in stored
    with pytest.raises(MessageError):
        decompressed(stored, 6000)
    assert b"canary" in compressed


async def test_the_form_is_that_of_the_documentation() -> None:
    async with open_harness(encrypt=True) as harness:
        await harness.send(LARGE)
        (raw,) = await harness.raw()
        [(name, stored)] = content(harness).items()

    key = bytes.fromhex(raw.properties["x-pairgate-claim-key"])
    claim = claims.claim_of(raw)
    assert (claim.id, claim.key) == (name, key)
    assert LARGE in decompressed(decrypted(stored, key, name), claim.size)


async def test_each_body_has_a_key_of_its_own() -> None:
    async with open_harness(encrypt=True) as harness:
        for _ in range(2):
            await harness.send(LARGE)
        keys = [claims.claim_of(raw).key for raw in await harness.raw()]

    assert len(set(keys)) == 2


async def test_a_reader_without_the_option_reads_them_too_and_the_other_way_round() -> None:
    for encrypts in (False, True):
        async with open_harness(encrypt=encrypts) as harness:
            await harness.send(LARGE)
            inner, check = harness.faulty, harness.broker.claim_check
            other = claimed(inner, harness.store, check.clock, harness.events, encrypt=not encrypts)
            there = attrs.evolve(harness, broker=other)
            assert (await there.take()).message.body == LARGE


@pytest.mark.parametrize("change", ["key", "id"])
async def test_another_key_or_the_body_of_another_message_is_corrupt(change: str) -> None:
    async with open_harness(encrypt=True) as harness:
        check: ClaimCheck = harness.broker.claim_check
        await harness.send(LARGE)
        (raw,) = await harness.raw()
        claim = claims.claim_of(raw)
        moved = {"key": KEY} if change == "key" else {"id": NAME}
        harness.store.kept[NAME] = harness.store.kept[claim.id]

        with pytest.raises(claims.ClaimCorrupt, match="can't be decrypted"):
            await check.check_out(attrs.evolve(claim, **moved), Message())


async def test_each_changed_byte_is_noticed() -> None:
    right = encrypted(b"body", KEY, NAME)
    assert decrypted(right, KEY, NAME) == b"body"
    for index in range(len(right)):
        wrong = bytearray(right)
        wrong[index] ^= 1
        with pytest.raises(MessageError):
            decrypted(bytes(wrong), KEY, NAME)
