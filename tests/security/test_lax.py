"""Inputs that violate their protocol are refused."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.brokers.amqp.options import LinkOptions
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Kind, Message, Typed
from gateway.domain.topics.property_values import check_message_id, check_sent
from gateway.net.http.codec import HttpCodec
from gateway.net.http.guard import RequestRefused
from gateway.pairing.records.ownership import owner_in
from gateway.wire.amqp.events import ConnectionClosed
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.amqp.performatives import uint
from gateway.wire.http.hardened_xml import XmlError, parse_xml
from gateway.wire.storage_queue.metadata import read_notes
from tests.wire.amqp.frames import OPEN, anonymous_server, frame


def closed_by(server: object, *frames: bytes) -> list[str]:
    """The conditions with which it ends the connection."""
    for each in (AMQP_HEADER, *frames):
        server.feed(each)
    return [
        event.error.condition
        for event in server.events()
        if isinstance(event, ConnectionClosed) and event.error
    ]


def opening(idle: int | None = None) -> bytes:
    fields = ["client", None, None, None, None if idle is None else uint(idle)]
    return frame(OPEN, fields)


@pytest.mark.parametrize(
    ("idle", "conditions"),
    [(1, ["amqp:not-allowed"]), (999, ["amqp:not-allowed"]), (1000, []), (0, []), (None, [])],
)
def test_an_idle_time_out_below_a_second_is_refused(
    idle: int | None, conditions: list[str]
) -> None:
    assert closed_by(anonymous_server(), opening(idle)) == conditions


def test_a_peer_is_never_told_less_than_a_second() -> None:
    for options in (EngineOptions, LinkOptions):
        assert options(idle_timeout=2.0)
        with pytest.raises(ValueError, match="idle_timeout"):
            options(idle_timeout=1.9)
    assert EngineOptions(idle_timeout=0.0)


def test_a_second_open_ends_the_connection() -> None:
    assert closed_by(anonymous_server(), opening(), opening()) == ["amqp:not-allowed"]


@pytest.mark.parametrize("code", [0x00, 0x0F, 0x19, 0x24, 0x70, 0x80])
def test_an_unknown_performative_ends_the_connection(code: int) -> None:
    found = closed_by(anonymous_server(), opening(), frame(code, [None] * 3))

    assert found == ["amqp:connection:framing-error"]


def take(tried: HttpCodec, pieces: list[bytes]) -> None:
    for piece in pieces:
        tried.feed(piece)
        tried.next_request()


def codec() -> HttpCodec:
    return HttpCodec(
        max_body=1000, server_name=b"x", wall_clock=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /\r\n"],
        [b"GET", b" /\r", b"\n"],
        [b"GET / HTTP/2.0\r\n"],
        [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\nx\n0\n\n"],
        [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", b"0\n"],
        *(
            [b"GET / HTTP/1.1\r\nHost: a\r\nX: a%bb\r\n\r\n" % control]
            for control in (b"\1", b"\x08", b"\x0b", b"\x1f", b"\x7f")
        ),
    ],
)
def test_bytes_that_can_become_no_request_are_refused_at_once(pieces: list[bytes]) -> None:
    with pytest.raises(RequestRefused) as refused:
        take(codec(), pieces)

    assert refused.value.status == 400


def test_a_request_that_comes_byte_by_byte_is_taken() -> None:
    tried = codec()
    found = []
    for byte in b"GET /a HTTP/1.1\r\nHost: a\r\nX: \tb\x80\r\n\r\n":
        tried.feed(bytes([byte]))
        found.append(tried.next_request())

    assert [each.target for each in found if each is not None] == ["/a"]


@pytest.mark.parametrize(
    "encoding", ["utf-16le", "utf-7", "zip", "iso-8859-1", "UTF-32", "utf-8-sig", "cp1252"]
)
def test_a_document_that_names_another_encoding_is_refused(encoding: str) -> None:
    for quote in ("'", '"'):
        for mark in ("", "\ufeff"):
            declared = f"{mark}<?xml version='1.0' encoding = {quote}{encoding}{quote}?><a/>"
            with pytest.raises(XmlError):
                parse_xml(declared.encode())


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "Utf-8", "us-ascii", "utf-16"])
def test_a_document_that_is_what_it_says_is_read(encoding: str) -> None:
    assert parse_xml(f'<?xml version="1.0" encoding="{encoding}" ?><a/>'.encode()).tag == "a"
    assert parse_xml(b"<a b=\"&lt;?xml encoding='zip'\"/>").tag == "a"


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"storage-queue":' * 50_000])
def test_user_metadata_of_any_depth_is_somebody_elses_text(deep: str) -> None:
    """A queue whose metadata raise an error would spoil the list of all queues."""
    assert read_notes(deep).text == deep
    assert owner_in(deep) is None


def test_a_time_to_live_is_more_than_zero() -> None:
    check_sent(Message(time_to_live=timedelta(microseconds=1)))
    for life in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(InvalidRequest, match="time to live: more than zero expected"):
            check_sent(Message(message_id="1", time_to_live=life))


def test_a_life_of_less_than_a_millisecond_is_not_written_as_none() -> None:
    short = encode_message(Message(time_to_live=timedelta(microseconds=1)))

    assert decode_message(short).time_to_live == timedelta(milliseconds=1)


def test_a_message_id_has_at_most_128_characters() -> None:
    check_message_id("x" * 128)
    check_message_id(Typed(Kind.ULONG, 2**64 - 1))
    check_message_id(b"x" * 1000)  # an id that Service Bus doesn't show
    with pytest.raises(InvalidRequest):
        check_message_id("x" * 129)
