"""Every malformed or dangerous request gets exactly one refusal, and its connection ends."""

import re

import pytest
from trio.testing import memory_stream_pair

from tests.net.conftest import Exchange, read_all

H = b"POST /q HTTP/1.1\r\nHost: a\r\n"
CHUNKED = H + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"
KIB16 = 16 * 1024


def head_of(size):
    """A whole request whose head has this many bytes."""
    begin, end = b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"\r\n\r\n"
    return begin + b"x" * (size - len(begin) - len(end)) + end


def fields(count):
    return b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(count - 1))


REFUSED = {
    # Two opinions on where the request ends
    "CL and TE": (400, H + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE and CL": (400, H + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "CL twice, different": (400, H + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhelloX"),
    "CL twice, equal": (400, H + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "CL list": (400, H + b"Content-Length: 5, 5\r\n\r\nhello"),
    "CL +5": (400, H + b"Content-Length: +5\r\n\r\nhello"),
    "CL 0x5": (400, H + b"Content-Length: 0x5\r\n\r\nhello"),
    "CL negative": (400, H + b"Content-Length: -1\r\n\r\n"),
    "CL 5_0": (400, H + b"Content-Length: 5_0\r\n\r\n"),
    "CL empty": (400, H + b"Content-Length:\r\n\r\n"),
    "CL in Arabic digits": (400, H + b"Content-Length: \xd9\xa5\r\n\r\n"),
    "CL 10^30": (413, H + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n"),
    "CL of 5000 digits": (413, H + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
    "CL above the limit": (413, H + b"Content-Length: 4194305\r\n\r\n"),
    "TE xchunked": (400, H + b"Transfer-Encoding: xchunked\r\n\r\n"),
    "TE chunked, identity": (400, H + b"Transfer-Encoding: chunked, identity\r\n\r\n"),
    "TE gzip, chunked": (400, H + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    "TE twice": (400, H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "TE chunked, chunked": (400, H + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "TE quoted": (400, H + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n'),
    "TE with a parameter": (400, H + b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n"),
    "TE empty": (400, H + b"Transfer-Encoding:\r\n\r\n"),
    "TE behind a vertical tab": (400, H + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "TE before a form feed": (400, H + b"Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n"),
    "TE with a NUL in its name": (400, H + b"Transfer-Encoding\0: chunked\r\n\r\n0\r\n\r\n"),
    "TE behind a bare CR": (400, H + b"X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE in a folded line": (400, H + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "TE folded": (400, H + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "CL 5 5": (400, H + b"Content-Length: 5 5\r\n\r\nhello"),
    "CL 5;": (400, H + b"Content-Length: 5;\r\n\r\nhello"),
    "CL behind a vertical tab": (400, H + b"Content-Length: \x0b5\r\n\r\nhello"),
    "space before the first field": (400, b"POST /q HTTP/1.1\r\n Host: a\r\n\r\n"),
    "chunk size behind a space": (400, CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n"),
    "chunk size before a bare CR": (400, CHUNKED + b"5\r\r\nhello\r\n0\r\n\r\n"),
    "chunk size 5_0": (400, CHUNKED + b"5_0\r\nhello\r\n0\r\n\r\n"),
    "bare LF after a chunk": (400, CHUNKED + b"5\r\nhello\n0\r\n\r\n"),
    "TE in HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "space before colon": (400, H + b"Content-Length : 5\r\n\r\nhello"),
    "space before colon of TE": (400, H + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "folded line": (400, H + b"X-A: 1\r\n  folded\r\n\r\n"),
    "folded with tab": (400, H + b"X-A: 1\r\n\tfolded\r\n\r\n"),
    "bare LF": (400, b"POST /q HTTP/1.1\nHost: a\nContent-Length: 0\n\n"),
    "one bare LF": (400, b"POST /q HTTP/1.1\r\nHost: a\nContent-Length: 0\r\n\r\n"),
    "bare CR": (400, H + b"X-A: a\rb\r\n\r\n"),
    "bare CR at the end": (400, H + b"X-A: a\r\r\n\r\n"),
    "NUL": (400, H + b"X-A: a\0b\r\n\r\n"),
    "NUL in the target": (400, b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n"),
    # Chunks
    "bad chunk end": (400, CHUNKED + b"5\r\nhelloXX0\r\n\r\n"),
    "chunk size of 21 digits": (400, CHUNKED + b"f" * 21 + b"\r\n"),
    "chunk size of 15 digits": (413, CHUNKED + b"f" * 15 + b"\r\n"),
    "chunk size negative": (400, CHUNKED + b"-1\r\n"),
    "chunk size 0x1": (400, CHUNKED + b"0x1\r\na\r\n0\r\n\r\n"),
    "chunk size empty": (400, CHUNKED + b"\r\n0\r\n\r\n"),
    "chunk extension of 257": (400, CHUNKED + b"5;" + b"a" * 257 + b"\r\nhello\r\n0\r\n\r\n"),
    "chunk extension of 20 KB": (400, CHUNKED + b"5;" + b"a" * 20000 + b"\r\n"),
    "chunk line without end": (400, CHUNKED + b"5;" + b"a" * 20000),
    "bare LF in a chunk line": (400, CHUNKED + b"5\nhello\r\n0\r\n\r\n"),
    "bare LF in an extension": (400, CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    "bare LF in a trailer": (400, CHUNKED + b"0\r\nA: b\n\r\n\r\n"),
    "folded trailer": (400, CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n"),
    "trailers of 5 KB": (400, CHUNKED + b"0\r\n" + (b"A: " + b"b" * 300 + b"\r\n") * 17),
    "mostly extensions": (400, CHUNKED + (b"1;" + b"a" * 250 + b"\r\nx\r\n") * 100),
    "chunks above the limit": (413, CHUNKED + (b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 9),
    # The request line
    "target of another scheme": (400, b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target with a user": (400, b"GET http://me@a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target without a host": (400, b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target without a slash": (400, b"GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots in a URL": (400, b"GET http://a/../admin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "target *": (400, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    "CONNECT": (501, b"CONNECT evil:443 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "TRACE": (501, b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "method in small letters": (400, b"get / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "unknown method": (501, b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (400, b"GET /\r\n\r\n"),
    "two spaces": (400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "TLS to a plain port": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "AMQP to an HTTP port": (400, b"AMQP\x00\x01\x00\x00"),
    "blank line first": (400, b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots, encoded": (400, b"GET /%2e%2e/%2e%2e/admin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots, half encoded": (400, b"GET /a/.%2E HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots": (400, b"GET /a/../admin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "one dot": (400, b"GET /./admin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots between encoded slashes": (400, b"GET /a%2f..%2fadmin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots between backslashes": (400, b"GET /a\\..\\admin HTTP/1.1\r\nHost: a\r\n\r\n"),
    "dots before the query": (400, b"GET /a/..?b HTTP/1.1\r\nHost: a\r\n\r\n"),
    # Fields
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "two equal hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n"),
    "gzip": (415, H + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"),
    "unknown expectation": (417, H + b"Expect: 200-ok\r\nContent-Length: 5\r\n\r\nhello"),
    "field without a name": (400, H + b": a\r\n\r\n"),
    "field without a colon": (400, H + b"abc\r\n\r\n"),
    # Sizes
    "field of 20 KB": (431, H + b"X: " + b"a" * 20000),
    "whole head of 20 KB": (431, head_of(20000)),
    "head of 16 KiB and one": (431, head_of(KIB16 + 1)),
    "101 fields": (431, fields(101) + b"\r\n"),
    "1500 fields": (431, fields(1500) + b"\r\n"),
    "target without end": (414, b"GET /" + b"a" * 20000),
}
# Legal, and so not refused: they must be served properly.
ACCEPTED = {
    "target of 15 KB": b"GET /" + b"a" * 15000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "head of 16 KiB": head_of(KIB16),
    "100 fields": fields(100) + b"\r\n",
    "chunk extension of 256": CHUNKED + b"5;" + b"a" * 255 + b"\r\nhello\r\n0\r\n\r\n",
    "one byte per chunk": CHUNKED + b"1\r\nx\r\n" * 10000 + b"0\r\n\r\n",
    "trailer": CHUNKED + b"5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    "capitals of TE": H + b"TRANSFER-ENCODING: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "identity": H + b"Content-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
    "dots in a name": b"GET /a..b/.hidden/c. HTTP/1.1\r\nHost: a\r\n\r\n",
    "dots in the query": b"GET /a?b=/../c HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded twice": b"GET /%252e%252e/a HTTP/1.1\r\nHost: a\r\n\r\n",
    "signs in the path": b"GET /$/()',;=%2F HTTP/1.1\r\nHost: a\r\n\r\n",
    "body at the limit": H + b"Content-Length: 4194304\r\n\r\n" + b"x" * 4194304,
    "no host in HTTP/1.0": b"GET / HTTP/1.0\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    # java.net.http.HttpClient, jdk.internal.net.http.Http2ClientImpl and Http1Request.
    "an offer of HTTP/2": b"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: a\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n\r\n",
    "URL": b"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n",
    "the server as a whole": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.fixture(params=[True, False], ids=["plain", "h11"])
def exchange(request, nursery):
    """A server that reads plain heads without h11, and one that leaves all of them to h11."""
    return Exchange(nursery, plain=request.param)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_bad_request_gets_one_refusal_and_the_connection_ends(
    name, exchange, autojump_clock
):
    status, request = REFUSED[name]
    client = exchange.connect()

    await client.send_all(request + SMUGGLED)
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert re.findall(rb"HTTP/1\.1 \d\d\d", answer) == [b"HTTP/1.1 %d" % status]
    assert b"\r\nConnection: close\r\n" in answer
    assert exchange.requests == []


@pytest.mark.parametrize("name", [name for name in REFUSED if len(REFUSED[name][1]) < KIB16])
async def test_a_refused_request_is_refused_byte_by_byte_too(name, exchange, autojump_clock):
    status, request = REFUSED[name]
    client = exchange.connect()

    for index in range(len(request)):
        await client.send_all(request[index : index + 1])
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert exchange.requests == []


@pytest.mark.parametrize(
    ("target", "wanted", "host"),
    [
        (b"http://a.example:80/b%20c?d=/e", "/b%20c?d=/e", "a.example:80"),
        (b"HTTPS://a.example/", "/", "a.example"),
        (b"http://a.example", "/", "a.example"),
        (b"http://a.example?b=1", "/?b=1", "a.example"),
        (b"http://[::1]:80/b", "/b", "[::1]:80"),
        (b"*", "/", "evil"),
    ],
)
async def test_a_target_is_a_path_and_a_url_names_the_host(
    target, wanted, host, exchange, autojump_clock
):
    """Otherwise the guard and a signature would be checked with another host."""
    client = exchange.connect()

    await client.send_all(b"OPTIONS %b HTTP/1.1\r\nhost: evil\r\nA: b\r\n\r\n" % target)
    await client.send_eof()
    await read_all(client)

    (request,) = exchange.requests
    assert (request.target, request.headers.all("Host")) == (wanted, [host])
    assert request.headers.get("A") == "b"


@pytest.mark.parametrize("name", ACCEPTED)
async def test_an_unusual_but_legal_request_is_served(name, exchange, autojump_clock):
    client = exchange.connect()

    await client.send_all(ACCEPTED[name])
    await client.send_eof()
    answer = await read_all(client)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert len(exchange.requests) == 1


async def test_three_requests_at_once_are_answered_in_order(exchange, autojump_clock):
    client = exchange.connect(pair=memory_stream_pair)

    await client.send_all(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(3)))
    await client.send_eof()
    answer = await read_all(client)

    assert re.findall(rb"X-Path: (\S+)", answer) == [b"/0", b"/1", b"/2"]


async def test_an_offer_of_http_2_is_ignored_and_the_connection_goes_on(exchange, autojump_clock):
    client = exchange.connect(pair=memory_stream_pair)

    await client.send_all(ACCEPTED["an offer of HTTP/2"] + b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
    await client.send_eof()
    answer = await read_all(client)

    assert re.findall(rb"X-Path: (\S+)", answer) == [b"/", b"/next"]
    assert b"101" not in answer


async def test_the_good_requests_before_a_bad_one_are_answered(exchange, autojump_clock):
    client = exchange.connect()

    await client.send_all(SMUGGLED + REFUSED["CL and TE"][1] + SMUGGLED)
    answer = await read_all(client)

    assert re.findall(rb"HTTP/1\.1 (\d\d\d)", answer) == [b"200", b"400"]
