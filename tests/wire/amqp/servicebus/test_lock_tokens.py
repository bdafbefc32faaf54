"""Lock tokens and delivery tags."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.wire.amqp.servicebus.deliveries import bytes_of, tag_of, token_of


@given(st.uuids())
def test_a_token_is_the_tag_in_the_order_of_dotnet(token: UUID) -> None:
    tag = tag_of(str(token))

    assert tag == token.bytes_le
    assert bytes_of(str(token)) == token.bytes
    assert token_of(tag) == str(token)


@pytest.mark.parametrize("token", ["", "mine", "00112233", "0" * 31 + "g", "é" * 16])
def test_an_invalid_uuid_is_no_token(token: str) -> None:
    with pytest.raises(MessageError, match="a UUID expected"):
        tag_of(token)


@pytest.mark.parametrize("size", [0, 4, 15, 17])
def test_a_tag_of_another_size_is_no_token(size: int) -> None:
    with pytest.raises(MessageError, match="16 bytes"):
        token_of(bytes(size))
