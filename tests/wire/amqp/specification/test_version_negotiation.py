"""AMQP 1.0, part 2, 2.2: protocol headers come first, and decide whether anything follows."""

import pytest

from gateway.wire.amqp.engine import Engine
from gateway.wire.amqp.events import ConnectionClosed, ConnectionOpened
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.sasl import NO_SASL, OK, REFUSED, Credentials, SaslClient, SaslServer
from tests.wire.amqp.pair_of_engines import take_all
from tests.wire.amqp.performative_fields import AMQP_HEADER, SASL_HEADER, frame
from tests.wire.amqp.raw_peer import client, new_engine, server

OTHER_VERSIONS = [b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x01\x01\x00", b"AMQP\x00\x02\x00\x00"]
NO_HEADERS = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01\x00\x00", bytes(8)]
OTHER_PROTOCOLS = [b"AMQP\x02\x01\x00\x00", b"AMQP\x03\x01\x00\x00"]


def only_sasl(credentials: Credentials) -> int:
    return REFUSED if credentials.mechanism == NO_SASL else OK


def with_sasl_server() -> Engine:
    return Engine(EngineOptions(), sasl=SaslServer(only_sasl))


def with_sasl_client() -> Engine:
    return Engine(EngineOptions(), sasl=SaslClient(Credentials(mechanism="ANONYMOUS")))


def test_a_client_sends_its_header_at_once_and_before_any_frame() -> None:
    """2.2: each peer MUST start by sending a protocol header, a client MUST do so immediately."""
    peer = client()

    assert peer.begun == AMQP_HEADER
    assert [each.kind for each in peer.frames] == ["open"]


def test_a_client_with_sasl_sends_its_header_at_once_and_nothing_else() -> None:
    """2.2 and 5.3: the header of the SASL layer comes first."""
    engine = with_sasl_client()
    engine.open()

    assert take_all(engine) == SASL_HEADER


def test_a_server_answers_a_version_that_it_supports_with_the_same_header() -> None:
    """2.2: the server MUST send its own protocol header with the requested version."""
    peer = server()
    peer.say(AMQP_HEADER, frame("open", container_id="raw"))
    peer.engine.open()
    peer.hear()

    assert peer.begun == AMQP_HEADER
    assert [each.kind for each in peer.frames] == ["open"]


def test_a_header_may_come_byte_by_byte() -> None:
    """2.2: an 8-octet sequence, of a stream."""
    peer = server()
    for byte in AMQP_HEADER + frame("open", container_id="raw"):
        peer.say(bytes((byte,)))

    assert len(peer.told(ConnectionOpened)) == 1


@pytest.mark.parametrize("header", [*OTHER_VERSIONS, *NO_HEADERS])
def test_a_server_answers_what_it_does_not_support_with_what_it_does_and_closes(
    header: bytes,
) -> None:
    """
    2.2: if the version isn't supported, or the header can't be parsed, the server MUST send a
    header with a supported version and then close the socket.
    """
    engine = new_engine()
    engine.feed(header)
    (closed,) = engine.events()

    assert take_all(engine) == AMQP_HEADER
    assert closed.error.condition == "amqp:connection:framing-error"
    assert engine.finished


@pytest.mark.parametrize("header", OTHER_PROTOCOLS)
def test_a_server_answers_another_protocol_with_one_that_it_accepts_and_closes(
    header: bytes,
) -> None:
    """2.2: the server MUST send a header with an acceptable protocol id, and close the socket."""
    engine = new_engine()
    engine.feed(header)

    assert take_all(engine) == AMQP_HEADER
    assert engine.finished


@pytest.mark.parametrize("header", [AMQP_HEADER, b"AMQP\x02\x01\x00\x00", *NO_HEADERS])
def test_a_server_that_requires_sasl_says_so_and_closes(header: bytes) -> None:
    """2.2: a raw AMQP connection where SASL is required MUST be answered with an acceptable id."""
    engine = with_sasl_server()
    engine.feed(header)
    (closed,) = engine.events()

    assert take_all(engine) == SASL_HEADER
    assert closed.error.condition == "amqp:connection:framing-error"
    assert engine.finished


@pytest.mark.parametrize("header", [*OTHER_VERSIONS, *OTHER_PROTOCOLS, *NO_HEADERS])
def test_a_client_whose_header_is_not_answered_by_the_same_one_closes(header: bytes) -> None:
    """2.2: if the headers don't match, both peers MUST close their outgoing stream."""
    peer = client()
    peer.engine.feed(header)

    assert take_all(peer.engine) == b""
    assert peer.engine.finished


def test_nothing_of_what_follows_a_foreign_header_is_understood() -> None:
    """2.2: data beyond the header MUST match the version that the header indicates."""
    peer = server()
    peer.engine.feed(OTHER_VERSIONS[0] + frame("open", container_id="raw"))

    assert [type(each) for each in peer.engine.events()] == [ConnectionClosed]
