"""Names and keys of storage accounts."""

import hashlib

import pytest

from gateway.domain.storage_queue import (
    EMULATOR_ACCOUNT,
    StorageAccount,
    check_account_name,
)


@pytest.mark.parametrize("name", ["abc", "a" * 24, "0a1"])
def test_an_account_has_3_to_24_small_letters_and_digits(name: str) -> None:
    check_account_name(name)

    assert StorageAccount(name=name, keys=(b"k",)).name == name


@pytest.mark.parametrize("name", ["", "ab", "a" * 25, "Abc", "a-b", "abc\n", "äbc", "٣٣٣"])
def test_no_account_has_another_name(name: str) -> None:
    with pytest.raises(ValueError, match="3 to 24 lowercase letters"):
        StorageAccount(name=name, keys=(b"k",))


def test_a_name_that_is_much_too_long_is_cut_in_the_text() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_account_name("a" * 1000)

    assert len(str(caught.value)) < 120


def test_an_account_has_two_keys_at_most() -> None:
    with pytest.raises(ValueError, match="keys"):
        StorageAccount(name="contoso", keys=(b"1", b"2", b"3"))


def test_a_key_isnt_shown() -> None:
    assert "secret" not in repr(StorageAccount(name="contoso", keys=(b"secret", b"two")))


def test_the_emulators_account_is_the_published_one() -> None:
    """As its documentation has it; the digest stands here, so that no test copies the key."""
    [key] = EMULATOR_ACCOUNT.keys

    assert EMULATOR_ACCOUNT.name == "devstoreaccount1"
    assert hashlib.sha256(key).hexdigest() == (
        "cb4de97f405a7e4686710db86f345ac95acb27c33192e82caafa9c197f2019e5"
    )
