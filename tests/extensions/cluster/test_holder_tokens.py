import random
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.extensions.cluster.tokens import Holder, HolderTokens, tag_of

SECRET, OTHER = "s" * 32, "o" * 32
ONE, TWO = "10.0.0.1:5680", "10.0.0.2:5680"


def tokens(address: str = ONE, *secrets: str) -> HolderTokens:
    return HolderTokens(tag_of(address), secrets or (SECRET,), random.Random(address))


def tag_in(token: str, reader: HolderTokens) -> int | None:
    holder = reader.holder_of(token)
    return None if holder is None else holder.tag


def test_a_lock_token_is_a_uuid_as_those_of_service_bus_are():
    found = UUID(tokens().new_token())

    assert (found.version, found.variant) == (4, RFC_4122)


def test_each_gateway_reads_who_holds_the_delivery_in_either_case():
    token = tokens(ONE).new_token()

    assert tag_in(token, tokens(TWO)) == tag_of(ONE)
    assert tag_in(token.upper(), tokens(TWO)) == tag_of(ONE)


@pytest.mark.parametrize("process", [0, 1, 64, 255])
def test_a_lock_token_names_the_process_of_the_gateway(process):
    made = HolderTokens(tag_of(ONE), (SECRET,), random.Random(1), process).new_token()

    assert tokens(TWO).holder_of(made) == Holder(tag_of(ONE), process)


@pytest.mark.parametrize(("process", "is_here"), [(None, True), (1, True), (2, False)])
def test_a_gateway_of_one_process_has_made_all_with_its_tag(process, is_here):
    own = HolderTokens(tag_of(ONE), (SECRET,), random.Random(1), process)

    assert own.is_made_here(Holder(tag_of(ONE), 1)) is is_here
    assert not own.is_made_here(Holder(tag_of(TWO), 1))


def test_no_two_tokens_are_the_same():
    own = tokens()

    assert len({own.new_token() for _ in range(1000)}) == 1000


@given(bit=st.integers(0, 127))
def test_a_changed_bit_makes_it_nobodys(bit):
    changed = str(UUID(int=UUID(tokens().new_token()).int ^ 1 << bit))

    assert tokens().holder_of(changed) is None


@given(
    text=st.text(max_size=40) | st.uuids().map(str) | st.text("0123456789abcdef-_+x", max_size=36)
)
def test_other_texts_are_nobodys(text):
    assert tokens().holder_of(text) is None


@pytest.mark.parametrize("digits", [36, 35, 34, 33])
def test_more_digits_than_a_uuid_has_are_nobodys(digits):
    """The fixed bits are right; the others are more than 122."""
    text = "f" * (digits - 20) + "4fff" + "b" + "f" * 15

    assert tokens().holder_of("-" * (36 - digits) + text) is None


@pytest.mark.parametrize("dash", ["_", "", "+"])
def test_a_token_with_other_dashes_is_nobodys(dash):
    assert tokens().holder_of(tokens().new_token().replace("-", dash)) is None


def test_a_token_whose_dashes_are_elsewhere_is_nobodys():
    token = tokens().new_token()

    assert tokens().holder_of("----" + token.replace("-", "")) is None


def test_a_token_of_another_cluster_is_nobodys():
    assert tokens(ONE, SECRET).holder_of(tokens(ONE, OTHER).new_token()) is None


def test_while_the_secret_is_changed_both_are_read_and_the_first_is_used():
    before, between, after = tokens(ONE, SECRET), tokens(ONE, OTHER, SECRET), tokens(ONE, OTHER)

    assert tag_in(before.new_token(), between) == tag_of(ONE)
    assert tag_in(between.new_token(), after) == tag_of(ONE)
    assert before.holder_of(between.new_token()) is None
    assert [between.marks(b"text")[1]] == before.marks(b"text")
    assert between.marks(b"text")[0] == after.marks(b"text")[0]


@given(address=st.text(max_size=30))
def test_no_gateway_has_the_tag_that_means_none(address):
    assert 0 < tag_of(address) < 2**32
