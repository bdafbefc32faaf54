"""SASL on AMQP: the accepted clients, and the answers to the others."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import MessageError
from gateway.domain.message import Kind, Typed
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import described
from gateway.wire.amqp.sasl import (
    MECHANISMS,
    NO_SASL,
    OK,
    REFUSED,
    SASL_HEADER,
    TRY_LATER,
    XOAUTH2,
    Credentials,
    SaslClient,
    SaslFailed,
    SaslServer,
)
from gateway.wire.amqp.types import decode, encode


def frame(code, fields):
    body = encode(described(code, fields))
    return (len(body) + 8).to_bytes(4) + b"\x02\x01\0\0" + body


def init(mechanism, proof=b""):
    return frame(0x41, [Typed(Kind.SYMBOL, mechanism), proof])


def greeted(accepts=lambda credentials: OK):
    server = SaslServer(accepts)
    server.feed(bytearray(SASL_HEADER))
    return server


def test_the_mechanisms_are_an_array_of_symbols():
    answer = SaslServer(lambda credentials: OK).feed(bytearray(SASL_HEADER))

    (offer,) = decode(answer[16:]).value
    assert answer.startswith(SASL_HEADER)
    assert offer == Typed(Kind.ARRAY, tuple(Typed(Kind.SYMBOL, each) for each in MECHANISMS))


def test_bytes_that_follow_the_exchange_stay():
    data = bytearray(init("MSSBCBS") + b"AMQP\0\1\0\0")
    server = greeted()

    server.feed(data)

    assert server.done == Credentials(mechanism="MSSBCBS")
    assert data == b"AMQP\0\1\0\0"


def test_plain_tells_user_and_password():
    server = greeted()

    server.feed(bytearray(init("PLAIN", "\0key\0sécret".encode())))

    assert server.done == Credentials(mechanism="PLAIN", user="key", password="sécret")
    assert "sécret" not in repr(server.done)


@pytest.mark.parametrize(
    ("proof", "user", "token"),
    [
        (b"user=a@example.net\1auth=Bearer e.y.J\1\1", "a@example.net", "e.y.J"),
        (b"auth=bearer e.y.J\1\1", "", "e.y.J"),
        (b"user=\1auth=Bearer \1\1", "", ""),
        (b"user=a\1\1", "a", ""),
        (b"e.y.J", "", ""),
        (b"", "", ""),
    ],
)
def test_xoauth2_brings_a_token(proof, user, token):
    server = SaslServer(lambda credentials: OK, (*MECHANISMS, XOAUTH2))
    server.feed(bytearray(SASL_HEADER))

    server.feed(bytearray(init("XOAUTH2", proof)))

    assert server.done == Credentials(mechanism="XOAUTH2", user=user, password=token)
    assert "e.y.J" not in repr(server.done)


def test_a_token_of_another_charset_is_refused():
    with pytest.raises(SaslFailed):
        greeted().feed(bytearray(init("XOAUTH2", b"auth=Bearer \xff\1\1")))


def test_a_client_sends_its_token_as_the_server_reads_it():
    credentials = Credentials(mechanism="XOAUTH2", user="a", password="e.y.J")
    server = SaslServer(lambda found: OK if found == credentials else REFUSED, (XOAUTH2,))
    client = SaslClient(credentials)

    answer = client.feed(bytearray(server.feed(bytearray(client.start()))))
    client.feed(bytearray(server.feed(bytearray(answer))))

    assert client.done == server.done == credentials


@pytest.mark.parametrize(("verdict", "code"), [(REFUSED, 1), (TRY_LATER, 4)])
def test_a_later_decision_is_told_then(verdict, code):
    server, later = greeted(lambda credentials: None), greeted(lambda credentials: None)
    waiting = bytearray(init("ANONYMOUS") + b"AMQP\0\1\0\0")

    assert server.feed(waiting) == b""
    assert server.feed(waiting) == b""
    assert server.asked == Credentials(mechanism="ANONYMOUS")
    assert server.done is None
    server.verdict = OK
    assert decode(server.feed(waiting)[8:]).value == [Typed(Kind.UBYTE, 0)]
    assert server.done == server.asked
    assert waiting == b"AMQP\0\1\0\0"
    later.feed(bytearray(init("ANONYMOUS")))
    later.verdict = verdict
    with pytest.raises(SaslFailed) as caught:
        later.feed(bytearray())
    assert decode(caught.value.answer[8:]).value == [Typed(Kind.UBYTE, code)]


@pytest.mark.parametrize(
    "refused",
    [
        init("SCRAM-SHA-256"),
        init("PLAIN", b"key"),
        init("PLAIN", b"\0\xff\0\xff"),
        init("ANONYMOUS"),
    ],
)
def test_a_refused_client_is_told_so(refused):
    server = greeted(lambda credentials: REFUSED)

    with pytest.raises(SaslFailed) as caught:
        server.feed(bytearray(refused))

    assert decode(caught.value.answer[8:]).value == [Typed(Kind.UBYTE, 1)]
    assert server.done is None


@pytest.mark.parametrize("garbage", [b"AMQP\x02\1\0\0", b"AMQP\0\1\1\0", b"GET / HT"])
def test_another_protocol_is_answered_with_the_one_that_is_spoken_here(garbage):
    with pytest.raises(SaslFailed) as caught:
        SaslServer(lambda credentials: OK).feed(bytearray(garbage))

    assert caught.value.answer == SASL_HEADER


@pytest.mark.parametrize(
    "garbage",
    [(16 * 1024 + 1).to_bytes(4) + b"\x02\1\0\0", (7).to_bytes(4) + b"\x02\1\0\0", frame(0x44, [])],
)
def test_an_invalid_init_ends_it(garbage):
    with pytest.raises(SaslFailed):
        greeted().feed(bytearray(garbage))


def test_a_client_wants_its_mechanism_offered():
    client = SaslClient(Credentials(mechanism="EXTERNAL"))
    offer = frame(0x40, [Typed(Kind.ARRAY, (Typed(Kind.SYMBOL, "PLAIN"),))])

    with pytest.raises(SaslFailed, match="EXTERNAL is not offered, but PLAIN"):
        client.feed(bytearray(SASL_HEADER + offer))


@given(st.binary(), st.booleans())
def test_garbage_is_refused_or_waited_for(garbage, greets):
    server = greeted() if greets else SaslServer(lambda credentials: REFUSED)
    with contextlib.suppress(SaslFailed, MessageError):
        server.feed(bytearray(garbage))

    assert server.done is None


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_a_client_may_begin_without_sasl(size):
    server, data = SaslServer(lambda credentials: OK), bytearray()
    sent = AMQP_HEADER + b"the first frame"

    for at in range(0, len(sent), size):
        data += sent[at : at + size]
        assert server.done is not None or server.feed(data) == b""

    assert server.done == Credentials(mechanism=NO_SASL)
    assert bytes(data) == sent


def test_a_client_that_begins_without_sasl_may_be_refused():
    server = SaslServer(lambda credentials: REFUSED)

    with pytest.raises(SaslFailed, match="no SASL"):
        server.feed(bytearray(AMQP_HEADER))
