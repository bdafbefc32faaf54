"""A client's links take no more memory than the bytes that it has sent for them."""

import tracemalloc

import pytest

from gateway.domain.message import symbol
from gateway.wire.amqp.arrivals import MAX_NAME
from gateway.wire.amqp.events import ConnectionClosed, LinkAttached
from gateway.wire.amqp.frames import AMQP_HEADER
from gateway.wire.amqp.performatives import described, uint
from tests.wire.amqp.frames import ATTACH, BEGIN, OPEN, anonymous_server, frame, split
from tests.wire.amqp.pair_of_engines import take_all

pytestmark = pytest.mark.slow

LINKS = 20
# Each is one byte, and a list of Python once it is decoded.
EMPTY_LISTS = {symbol("lists"): [[]] * 60_000}


def begun():
    server = anonymous_server()
    server.feed(AMQP_HEADER + frame(OPEN, ["raw"]))
    server.open()
    server.feed(frame(BEGIN, [None, uint(0), uint(100), uint(100)]))
    take_all(server)
    list(server.events())
    return server


def attach(handle, name="", address="$cbs", properties=None):
    return frame(
        ATTACH,
        [
            f"{name}{handle}",
            uint(handle),
            True,
            None,
            None,
            described(0x28, [address]),
            described(0x29, []),
            *[None] * 6,
            properties,
        ],
    )


def test_an_attach_that_waits_for_its_answer_takes_no_more_memory_than_its_bytes():
    server = begun()
    frames = [attach(handle, properties=EMPTY_LISTS) for handle in range(LINKS)]
    tracemalloc.start()
    try:
        for data in frames:
            server.feed(data)
            assert len(list(server.events())) == 1
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken < 2 * sum(map(len, frames))


def test_an_attach_is_answered_with_its_own_source():
    server = begun()
    server.feed(attach(0, address="orders", properties=EMPTY_LISTS))
    (attached,) = server.events()
    assert isinstance(attached, LinkAttached)

    server.accept(attached.link)

    ((code, fields, _),) = split(take_all(server))
    assert code == ATTACH
    assert fields[5].value[0] == "orders"


@pytest.mark.parametrize("field", ["name", "address"])
def test_a_name_that_would_be_kept_and_is_too_long_ends_the_connection(field):
    server = begun()
    server.feed(attach(0, **{field: "n" * MAX_NAME * 2}))

    (closed,) = server.events()
    assert isinstance(closed, ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"
