import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.capabilities import LONGEST_TOKEN
from gateway.domain.entity import EntityPath
from gateway.wire.pairgate.sealed_tokens import LONGEST, SHORTEST, SealedTokens

SECRET, OTHER = "s" * 32, "o" * 32
ORDERS, OTHERS = EntityPath("orders"), EntityPath("others")
TOKEN = b"a token of a namespace"


@given(token=st.binary(min_size=12, max_size=LONGEST_TOKEN))
def test_each_gateway_opens_what_another_one_has_sealed(token):
    text = SealedTokens((SECRET,)).seal(ORDERS, token)

    assert SealedTokens((SECRET,)).unseal(EntityPath("Orders"), text) == token
    assert SHORTEST <= len(text) <= LONGEST
    assert token.hex() not in base64.urlsafe_b64decode(text + "==").hex(), "it is encrypted"


def test_a_token_of_another_entity_or_another_cluster_is_nobodys():
    text = SealedTokens((SECRET,)).seal(ORDERS, TOKEN)

    assert SealedTokens((SECRET,)).unseal(OTHERS, text) is None
    assert SealedTokens((OTHER,)).unseal(ORDERS, text) is None


@given(index=st.integers(0, 49), change=st.integers(1, 63))
def test_a_changed_character_makes_it_nobodys(index, change):
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    text = SealedTokens((SECRET,)).seal(ORDERS, TOKEN)
    other = digits[digits.index(text[index]) ^ change]

    assert SealedTokens((SECRET,)).unseal(ORDERS, text[:index] + other + text[index + 1 :]) is None


@given(text=st.text(max_size=80) | st.text("AZaz09-_=+/é", min_size=37, max_size=80))
def test_other_texts_are_nobodys(text):
    assert SealedTokens((SECRET,)).unseal(ORDERS, text) is None


@pytest.mark.parametrize("size", [LONGEST, LONGEST + 1, 1_000_000])
def test_so_are_texts_of_any_length(size):
    assert SealedTokens((SECRET,)).unseal(ORDERS, "A" * size) is None


def test_while_the_secret_is_changed_both_are_read_and_the_first_is_used():
    old, both = SealedTokens((SECRET,)), SealedTokens((OTHER, SECRET))

    assert both.unseal(ORDERS, old.seal(ORDERS, TOKEN)) == TOKEN
    assert old.unseal(ORDERS, both.seal(ORDERS, TOKEN)) is None
    assert SealedTokens((OTHER,)).unseal(ORDERS, both.seal(ORDERS, TOKEN)) == TOKEN


def test_the_secret_is_not_shown():
    assert SECRET not in repr(SealedTokens((SECRET,)))
