"""The plain way reads and writes a head exactly as h11 does, or leaves it to h11."""

from collections.abc import Sequence

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.net.http.client_codec import ClientCodec
from gateway.net.http.guard import MAX_HEAD, RequestRefused, check_head
from gateway.net.http.heads import (
    RequestHead,
    read_chunks,
    read_fields,
    read_plain_request,
    read_plain_response,
    write_plain_fields,
)
from gateway.wire.http.messages import Headers, Request, Response

MAX_BODY = 1000
NAMES = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=12)
SPACES = st.text(" \t", max_size=3)
VALUES = st.binary(max_size=30)
# Names that decide on the connection or on framing, and some that only look as if they did.
DECIDING = st.sampled_from(
    ["Connection", "content-length", "Transfer-Encoding", "Upgrade", "EXPECT", "Host", "Lengthy",
     "Content-Lengths", "X-Transfer-Encoding", "Content-Type"]
)  # fmt: skip
DECISIONS = st.sampled_from(
    [b"", b"0", b"2", b"5", b"2, 2", b"+2", b"close", b"keep-alive", b"chunked", b"gzip, chunked",
     b"h2c", b"100-continue", b"a\rb", b"a\nb", b"a\x0bb", b"a\x85b", b"\xa0", b"\xc3\xa9", b"here"]
)  # fmt: skip
FIELDS = st.lists(
    st.tuples(NAMES, SPACES, VALUES, SPACES) | st.tuples(DECIDING, SPACES, DECISIONS, SPACES),
    max_size=6,
)
Fields = Sequence[tuple[str, str, bytes, str]]


def lines_of(fields: Fields) -> bytes:
    return b"".join(
        f"{name}:{before}".encode() + value + after.encode() + b"\r\n"
        for name, before, value, after in fields
    )


def head_of(*lines: bytes) -> bytes:
    return b"\r\n".join([b"POST /q/messages?x=1 HTTP/1.1", b"Host: here", *lines, b"", b""])


def as_h11_reads_it(head: bytes) -> RequestHead:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    parser.receive_data(head)
    event = parser.next_event()
    assert isinstance(event, h11.Request)
    assert parser.their_state in (h11.SEND_BODY, h11.DONE)
    fields = read_fields(event.headers.raw_items())
    return RequestHead(event.method.decode(), event.target.decode(), fields)


@given(FIELDS)
def test_a_plain_request_says_what_h11_reads_in_it(fields: Fields) -> None:
    head = head_of(lines_of(fields).removesuffix(b"\r\n"))
    try:
        check_head(head, 100)
    except RequestRefused:
        return
    plain = read_plain_request(head)
    if plain is not None:
        assert plain == as_h11_reads_it(head)


def test_an_ordinary_request_is_plain() -> None:
    head = head_of(
        b'BrokerProperties: {"MessageId": "1"}',
        b"X-Cafe-free:\t yes ",
        b"X-Name: \xc3\xa9",
        b"X-Other: \xe9",
        b"Connection: keep-alive",
        b"Content-Length: 3",
    )
    fields = [
        ("Host", "here"),
        ("BrokerProperties", '{"MessageId": "1"}'),
        ("X-Cafe-free", "yes"),
        ("X-Name", "é"),
        ("X-Other", "é"),
        ("Connection", "keep-alive"),
        ("Content-Length", "3"),
    ]
    assert read_plain_request(head) == RequestHead("POST", "/q/messages?x=1", Headers.of(fields))


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: close",
        b"connection: keep-alive, close",
        b"Expect: 100-continue",
        b"Transfer-Encoding: chunked",
        b"UPGRADE: websocket",
        b"Connection : close",  # no field at all, but other parsers may accept it as one
        b"No colon",
        b": no name",
        b"Name: \x01",
    ],
)
def test_a_request_with_more_to_heed_is_left_to_h11(line: bytes) -> None:
    assert read_plain_request(head_of(line)) is None
    assert read_plain_request(head_of(line, b"A: b")) is None


def test_a_request_of_http_1_0_is_left_to_h11() -> None:
    assert read_plain_request(b"GET / HTTP/1.0\r\nHost: here\r\n\r\n") is None


def test_a_request_without_fields_is_plain() -> None:
    assert read_plain_request(b"GET / HTTP/1.1\r\n\r\n") == RequestHead("GET", "/", Headers())


# Responses


Outcome = tuple[Response, bool] | str


def outcome_of(answer: bytes, method: str, *, plain: bool) -> Outcome | None:
    """
    The response that a client reads, and whether its connection stays open; None: it waits for
    more.
    """
    codec = ClientCodec("here", Request(method=method, target="/"), MAX_BODY, plain=plain)
    codec.build()
    try:
        response = codec.receive(answer)
    except h11.RemoteProtocolError as error:
        return str(error)
    return None if response is None else (response, codec.is_reusable)


STATUS_LINES = st.sampled_from(
    [b"HTTP/1.1 201 Created", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 204 No Content",
     b"HTTP/1.1 503 Caf\xe9", b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Switching",
     b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 999 Odd", b"HTTP/1.1 20 Short", b"HTTP/2.0 200 OK",
     b"HTTP/1.1  200 OK", b"http/1.1 200 OK", b"HTTP/1.1 200 O\x0bK", b"\r\nHTTP/1.1 200 OK",
     b"HTTP/1.0 200 OK"]
)  # fmt: skip
BODIES = st.sampled_from(
    [b"", b"ok", b"hello", b"hello, and more", b"2\r\nok\r\n0\r\n\r\n", b"x" * (MAX_BODY + 1)]
)
CHUNKED = [("Transfer-Encoding", "", b"chunked", "")]
CHUNKS = st.lists(
    st.sampled_from(
        [b"2\r\nok\r\n", b"0a\r\n0123456789\r\n", b"0\r\n\r\n", b"0\r\n", b"\r\n",
         b"2;x=y\r\nok\r\n", b"f", b"X: y\r\n", b"2\r\nokay\r\n",
         b"2\nok\n", b"2 \r\nok\r\n", b"-2\r\nok\r\n",
         b"0x2\r\nok\r\n"]
    ),
    max_size=4,
)  # fmt: skip


@given(STATUS_LINES, FIELDS, st.none() | st.integers(0, MAX_BODY + 1), BODIES, st.booleans())
@example(b"HTTP/1.1 201 Created", [], 2, b"ok", False)
@example(b"HTTP/1.1 201 Created", [], 2, b"okay", False)
@example(b"HTTP/1.1 201 Created", [], MAX_BODY + 1, b"", False)
@example(b"HTTP/1.1 201 Created", [("X", "", b"a\nContent-Length: 3", "")], 2, b"okay", False)
def test_a_client_makes_of_an_answer_what_h11_does(
    line: bytes, fields: Fields, length: int | None, body: bytes, is_head: bool
) -> None:
    end = b"" if length is None else b"Content-Length: %d\r\n" % length
    answer = line + b"\r\n" + lines_of(fields) + end + b"\r\n" + body
    method = "HEAD" if is_head else "POST"

    plain, by_h11 = (outcome_of(answer, method, plain=plain) for plain in (True, False))

    assert plain == by_h11


@given(FIELDS, CHUNKS, st.binary(max_size=4))
@example([], [b"2\r\nok\r\n", b"0\r\n\r\n"], b"")
@example([], [b"2\r\nok\r\n", b"0\r\n\r\n"], b"more")
@example([], [b"3e9\r\n" + b"x" * (MAX_BODY + 1) + b"\r\n", b"0\r\n\r\n"], b"")
def test_a_client_makes_of_chunks_what_h11_does(
    fields: Fields, chunks: Sequence[bytes], more: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + lines_of([*fields, *CHUNKED]) + b"\r\n"
    answer = head + b"".join(chunks) + more

    assert outcome_of(answer, "GET", plain=True) == outcome_of(answer, "GET", plain=False)


def test_a_whole_chunked_answer_is_plain() -> None:
    head = b"HTTP/1.1 200 OK\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n"
    fields = Headers.of([("X", "y"), ("Transfer-Encoding", "chunked")])

    assert read_plain_response(head) == (200, fields, None)
    assert read_chunks(b"2\r\nok\r\nA\r\n0123456789\r\n0\r\n\r\n") == b"ok0123456789"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"2\r\nok\r\n",
        b"2\r\nok\r\n0\r\n",
        b"2;x=y\r\nok\r\n0\r\n\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\n\r\nmore",
    ],
)
def test_a_chunked_body_with_more_to_heed_is_left_to_h11(body: bytes) -> None:
    assert read_chunks(body) is None


@pytest.mark.parametrize("length", [b"", b"Content-Length: 0\r\n", b"Content-Length: 2\r\n"])
def test_an_answer_without_content_is_plain(length: bytes) -> None:
    found = read_plain_response(b"HTTP/1.1 204 No Content\r\n" + length + b"\r\n")

    assert found is not None
    assert (found.status, found.length) == (204, 0)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("size", [1, 2, 40, 1000])
def test_a_chunked_answer_may_come_in_pieces_of_any_size(size: int, plain: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"64\r\n" + b"z" * 100 + b"\r\n0\r\n\r\n"
    codec = ClientCodec("here", Request(method="GET", target="/"), MAX_BODY, plain=plain)
    codec.build()

    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    *before, response = [codec.receive(piece) for piece in pieces]

    assert set(before) <= {None}
    fields = Headers.of([("Transfer-Encoding", "chunked")])
    assert response == Response(status=200, headers=fields, body=b"z" * 100)
    assert codec.is_reusable


@given(st.binary(max_size=40))
def test_rubbish_is_read_as_h11_reads_it(rubbish: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + rubbish + b"\r\n\r\nok"

    assert outcome_of(answer, "POST", plain=True) == outcome_of(answer, "POST", plain=False)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("size", [1, 2, 40, 1000])
def test_an_answer_may_come_in_pieces_of_any_size(size: int, plain: bool) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX: y\r\n\r\n" + b"z" * 100
    codec = ClientCodec("here", Request(method="GET", target="/"), MAX_BODY, plain=plain)
    codec.build()

    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    *before, response = [codec.receive(piece) for piece in pieces]

    assert set(before) <= {None}
    fields = Headers.of([("Content-Length", "100"), ("X", "y")])
    assert response == Response(status=200, headers=fields, body=b"z" * 100)
    assert codec.is_reusable


def test_an_ordinary_response_is_plain() -> None:
    found = read_plain_response(b"HTTP/1.1 201 Created\r\nX: y\r\nContent-Length: 2\r\n\r\n")

    fields = Headers.of([("X", "y"), ("Content-Length", "2")])
    assert found == (201, fields, 2)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\nY: b\r\n\r\n",
    ],
)
def test_a_response_with_more_to_heed_is_left_to_h11(head: bytes) -> None:
    assert read_plain_response(head) is None


# Requests that are written


TEXTS = st.text(max_size=12) | st.sampled_from(
    [
        "a",
        "a b",
        " a",
        "a ",
        "a\tb",
        "é",
        "a\r\nX: y",
        "a\nb",
        "a: b",
        "\x7f",
        "\0",
        "\x0b",
        "\u2028",
    ]
)
NAME_TEXTS = NAMES | st.sampled_from(
    ["Host", "connection", "Content-Length", "Transfer-Encoding", "Expect", "UPGRADE", "A: b", "",
     "A\r\nB", "é", "X Y", "\u017f"]
)  # fmt: skip
TARGETS = st.sampled_from(["/", "/q/messages?x=1", "/a b", "/é", "", "/\r\nX: y", "/\x7f"])
METHODS = st.sampled_from(["GET", "POST", "HEAD", "CONNECT", "P T", "PÖST", "", "A\r\nB"])
AUTHORITIES = st.sampled_from(["here:80", "[::1]:80", "", "a b", "bücher", "a\r\nX: y"])


def written(request: Request, authority: str, *, plain: bool) -> bytes | str:
    try:
        return ClientCodec(authority, request, MAX_BODY, plain=plain).build()
    except InvalidRequest as error:
        return str(error)


@given(
    METHODS,
    TARGETS,
    AUTHORITIES,
    st.lists(st.tuples(NAME_TEXTS, TEXTS), max_size=4),
    st.sampled_from([b"", b"body"]),
)
@example("POST", "/", "here", [("X", "a\r\nY: b")], b"")
@example("POST", "/", "here", [("X: a", "b")], b"")
@example("POST", "/", "here", [("X", "a"), ("Content-Type", "text/plain")], b"body")
@example("POST", "/", "here", [("content-length", "4"), ("X", "a")], b"body")
@example("POST", "/", "here", [("Content-Length", "5"), ("X", "a")], b"body")
def test_a_request_is_written_as_h11_writes_it(
    method: str, target: str, authority: str, fields: list[tuple[str, str]], body: bytes
) -> None:
    request = Request(method=method, target=target, headers=Headers.of(fields), body=body)

    plain, by_h11 = (written(request, authority, plain=plain) for plain in (True, False))

    assert plain == by_h11


def test_fields_of_ours_are_plain() -> None:
    fields = [("BrokerProperties", '{"MessageId": "1"}'), ("X-Pairgate", "1"), ("Empty", "")]
    assert write_plain_fields(fields) == (
        'BrokerProperties: {"MessageId": "1"}\r\nX-Pairgate: 1\r\nEmpty: \r\n'
    )
