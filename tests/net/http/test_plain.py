import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.http.guard import MAX_HEAD, RequestRefused, check_head
from gateway.net.http.plain import Head, read_plain_head

NAMES = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=12)
SPACES = st.text(" \t", max_size=3)
VALUES = st.binary(max_size=30)


def head_of(*lines: bytes) -> bytes:
    return b"\r\n".join([b"POST /q/messages?x=1 HTTP/1.1", b"Host: here", *lines, b"", b""])


def as_h11_reads_it(head: bytes) -> Head:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    parser.receive_data(head)
    event = parser.next_event()
    assert isinstance(event, h11.Request)
    assert parser.their_state in (h11.SEND_BODY, h11.DONE)
    return Head(event.method, event.target, event.headers.raw_items())


@given(st.lists(st.tuples(NAMES, SPACES, VALUES, SPACES), max_size=6))
def test_a_plain_head_says_what_h11_reads_in_it(
    fields: list[tuple[str, str, bytes, str]],
) -> None:
    head = head_of(*(f"{n}:{b}".encode() + v + a.encode() for n, b, v, a in fields))
    try:
        check_head(head, 100)
    except RequestRefused:
        return
    plain = read_plain_head(head)
    if plain is not None:
        assert plain == as_h11_reads_it(head)


def test_an_ordinary_head_is_plain() -> None:
    head = head_of(
        b'BrokerProperties: {"MessageId": "1"}',
        b"X-Caf\xc3\xa9-free:\t yes ",
        b"Connection: keep-alive",
        b"Content-Length: 3",
    ).replace(b"\xc3\xa9", b"e")
    assert read_plain_head(head) == Head(
        b"POST",
        b"/q/messages?x=1",
        [
            (b"Host", b"here"),
            (b"BrokerProperties", b'{"MessageId": "1"}'),
            (b"X-Cafe-free", b"yes"),
            (b"Connection", b"keep-alive"),
            (b"Content-Length", b"3"),
        ],
    )


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"connection: keep-alive, close",
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"UPGRADE: websocket",
        b"Connection : close",  # no field at all, but who knows what others take it for
        b"No colon",
        b": no name",
        b"Name: \x01",
    ],
)
def test_a_head_with_more_to_heed_is_left_to_h11(line: bytes) -> None:
    assert read_plain_head(head_of(line)) is None
    assert read_plain_head(head_of(line, b"A: b")) is None


def test_a_head_of_http_1_0_is_left_to_h11() -> None:
    assert read_plain_head(b"GET / HTTP/1.0\r\nHost: here\r\n\r\n") is None


def test_a_head_without_fields_is_plain() -> None:
    assert read_plain_head(b"GET / HTTP/1.1\r\n\r\n") == Head(b"GET", b"/", [])
