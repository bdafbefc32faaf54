import random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Message
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.pairgate.encryption import (
    MOST_MESSAGES,
    NONCE,
    OVERHEAD,
    SALT,
    MessageEncryption,
)
from tests.strategies import messages

SECRET = b"k" * 32
ORDER = Message(message_id="m", body=b"body", properties={"customer": "Contoso"})


def encryption(**changes):
    return MessageEncryption(random.Random(0), **changes)


def sealed(message=ORDER, secret=SECRET, associated=b"orders"):
    return encryption().seal(secret, message, associated)[1]


@given(message=messages())
def test_a_message_comes_out_as_it_went_in(message):
    opened = encryption().open(SECRET, sealed(message), b"orders")

    assert opened == message
    assert encode_message(opened) == encode_message(message)


def test_nothing_of_the_message_can_be_read():
    found = sealed()

    assert len(found) == len(encode_message(ORDER)) + OVERHEAD
    for text in (b"body", b"customer", b"Contoso"):
        assert text not in found


def test_the_form_is_that_of_the_documentation():
    data = sealed()
    salt, nonce, rest = data[:16], data[16:28], data[28:]
    key = HKDF(SHA256(), length=32, salt=salt, info=b"envelope of Pairgate, AES-256-GCM").derive(
        SECRET
    )

    assert decode_message(AESGCM(key).decrypt(nonce, rest, b"orders")) == ORDER


def test_a_message_that_an_earlier_version_encrypted_can_be_opened():
    earlier = bytes.fromhex(
        "cd072cd8be6f9f62ac4c09c28206e7e35594aa6b342f5d0a3a5e4842663243148bb6d87274097552"
        "e63cc9269f64c86b474b217fe5ceb4e3987a2e9d56177b451376438b1ee5702614255aadac32ef3e"
        "a3da9c58612da1"
    )

    assert encryption().open(SECRET, earlier, b"orders") == ORDER


def test_each_changed_byte_is_noticed():
    right = sealed()
    for index in range(len(right)):
        wrong = bytearray(right)
        wrong[index] ^= 1 << index % 8
        with pytest.raises(MessageError):
            encryption().open(SECRET, bytes(wrong), b"orders")


def test_each_missing_end_is_noticed():
    right = sealed()
    for size in range(len(right)):
        with pytest.raises(MessageError):
            encryption().open(SECRET, right[:size], b"orders")


@pytest.mark.parametrize(
    ("secret", "associated"), [(b"K" * 32, b"orders"), (SECRET, b"bills"), (SECRET, b"")]
)
def test_another_secret_or_another_place_opens_nothing(secret, associated):
    with pytest.raises(MessageError):
        encryption().open(secret, sealed(), associated)


@given(data=st.binary(max_size=100))
def test_other_bytes_are_refused(data):
    with pytest.raises(MessageError):
        encryption().open(SECRET, data, b"orders")


def test_a_message_that_can_not_be_encoded_is_refused():
    with pytest.raises(MessageError):
        sealed(Message(properties={"a": object()}))


def test_equal_messages_have_different_nonces_and_ids():
    ours = encryption()
    both = [ours.seal(SECRET, ORDER, b"") for _ in range(2)]

    assert len({found[SALT : SALT + NONCE] for _, found in both}) == 2
    assert [found[SALT : SALT + NONCE].hex() for _, found in both] == [each for each, _ in both]


def salts(ours, secrets):
    return [ours.seal(secret, ORDER, b"")[1][:SALT] for secret in secrets]


def test_an_aes_key_is_replaced_before_it_has_encrypted_too_many_messages():
    found = salts(encryption(most=3), [SECRET] * 7)

    assert [found.count(salt) for salt in dict.fromkeys(found)] == [3, 3, 1]
    assert MOST_MESSAGES <= 2**32 // 64  # for as many workers, if they had the same AES key


def test_each_process_and_each_secret_has_aes_keys_of_its_own():
    ours = encryption()
    first, second, third = salts(ours, [SECRET, b"o" * 32, SECRET])

    assert len({first, second, third}) == 3
    assert ours.open(SECRET, sealed(), b"orders") == ORDER
    assert salts(MessageEncryption(random.Random(1)), [SECRET]) != [first]


def test_no_secret_is_in_a_repr():
    ours = encryption()
    ours.seal(b"hush " * 8, ORDER, b"")

    assert "hush" not in repr(ours)
