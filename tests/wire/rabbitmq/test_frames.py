"""The client's side of AMQP 0-9-1: frames in any pieces; a peer that breaks rules is cut off."""

import struct
from collections.abc import Iterable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    LoginRefused,
    MessageError,
    MessageTooLarge,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from gateway.wire.rabbitmq.content import write_content_header
from gateway.wire.rabbitmq.errors import error_after_hand_over, error_of, refusal_of_connection
from gateway.wire.rabbitmq.frames import (
    Blocked,
    BrokerClosed,
    ContentArrived,
    Conversation,
    Event,
    HandshakeDone,
    Login,
    MethodArrived,
    ProtocolError,
    Unblocked,
    content_frames,
    method_frame,
)

LOGIN = Login(user="guest", password="hush", vhost="/", heartbeat=5)
MAX_BODY = 100_000


def start(mechanisms: str = "AMQPLAIN PLAIN") -> bytes:
    properties = {"product": "RabbitMQ", "version": "3.10.8", "cluster_name": "rabbit@mq"}
    method = commands.Connection.Start(server_properties=properties, mechanisms=mechanisms)
    return method_frame(0, method)


GREETING = b"".join(
    (
        start(),
        method_frame(0, commands.Connection.Tune(2047, 131_072, 60)),
        method_frame(0, commands.Connection.OpenOk()),
    )
)


def opened() -> Conversation:
    conversation = Conversation(LOGIN, max_body=MAX_BODY)
    conversation.feed(GREETING)
    conversation.data_to_send()
    return conversation


def delivery(body: bytes, max_frame: int = 4096) -> bytes:
    method = commands.Basic.Deliver("c1", 7, False, "", "orders")
    head = write_content_header(len(body), {}, b"")
    return method_frame(1, method) + b"".join(content_frames(1, head, body, max_frame))


def methods_in(data: bytes) -> list[base.Frame]:
    """Return the methods in a client's output, after its protocol header."""
    methods, at = [], 8 if data.startswith(b"AMQP") else 0
    while at < len(data):
        _, _, size = struct.unpack_from(">BHI", data, at)
        (index,) = struct.unpack_from(">I", data, at + 7)
        method = commands.INDEX_MAPPING[index]()
        method.unmarshal(data[at + 11 : at + 7 + size])
        methods.append(method)
        at += size + 8
    return methods


def test_the_handshake_asks_for_what_we_need() -> None:
    conversation = Conversation(LOGIN, max_body=MAX_BODY)
    events = conversation.feed(GREETING)
    answer, tune, open_ = methods_in(conversation.data_to_send())

    [told] = events
    assert told == HandshakeDone(
        product="RabbitMQ", version="3.10.8", cluster="rabbit@mq", heartbeat=5, max_channels=2047
    )
    assert isinstance(answer, commands.Connection.StartOk)
    assert answer.response == "\0guest\0hush"
    assert answer.client_properties["capabilities"]["connection.blocked"] is True
    assert isinstance(tune, commands.Connection.TuneOk)
    assert (tune.heartbeat, tune.frame_max) == (5, 131_072)
    assert isinstance(open_, commands.Connection.Open)
    assert open_.virtual_host == "/"


def test_without_a_user_the_certificate_says_who_we_are() -> None:
    login = Login(user="", password="", vhost="/", heartbeat=5)
    conversation = Conversation(login, max_body=MAX_BODY)
    conversation.feed(start("PLAIN EXTERNAL"))
    [answer] = methods_in(conversation.data_to_send())

    assert isinstance(answer, commands.Connection.StartOk)
    assert answer.mechanism == "EXTERNAL"


def test_no_password_is_in_what_is_printed() -> None:
    assert "hush" not in repr(LOGIN)


@given(st.binary(max_size=20_000), st.lists(st.integers(1, 5000), max_size=30))
def test_frames_may_come_in_any_pieces(body: bytes, sizes: list[int]) -> None:
    conversation, events, data = opened(), list[Event](), delivery(body) * 2
    for size in sizes:
        events += conversation.feed(data[:size])
        data = data[size:]
    events += conversation.feed(data)

    assert [each.body for each in events if isinstance(each, ContentArrived)] == [body, body]
    assert len(events) == 2


def frames_of_delivery(channel: int, tag: str, body: bytes, max_frame: int) -> list[bytes]:
    method = commands.Basic.Deliver(tag, 7, len(body) % 2 == 0, "", "orders")
    head = write_content_header(len(body), {"message_id": tag}, b"")
    pieces = content_frames(channel, head, body, max_frame)
    frames = [b"".join(pieces[at : at + 3]) for at in range(0, len(pieces), 3)]
    return [method_frame(channel, method), *frames]


DELIVERIES = st.builds(
    frames_of_delivery,
    st.integers(1, 2),
    st.sampled_from(["", "c1", "a-long-consumer-tag"]),
    st.binary(max_size=40) | st.just(b"x" * 3000),
    st.sampled_from([131_072, 1000]),
)


def fed(pieces: Iterable[bytes]) -> tuple[list[Event], bool]:
    """The events of a conversation that gets these pieces, and whether it is still intact."""
    conversation, events = opened(), list[Event]()
    for piece in pieces:
        try:
            events += conversation.feed(piece)
        except ProtocolError:
            return events, False
    return events, True


def told(events: Iterable[Event]) -> list[object]:
    """The events in a form that compares them: a method of pamqp equals itself alone."""
    return [
        (
            type(event),
            [(each.name, *each) if isinstance(each, base.Frame) else each for each in parts],
        )
        for event in events
        for parts in [attrs.astuple(event, recurse=False)]
    ]


@pytest.mark.filterwarnings("ignore:This command is deprecated")  # a changed byte may make it
@given(st.lists(DELIVERIES, max_size=4), st.data())
def test_whole_deliveries_are_read_as_byte_by_byte(
    deliveries: list[list[bytes]], data: st.DataObject
) -> None:
    frames = [frame for delivery in deliveries for frame in delivery]
    if data.draw(st.booleans()):  # of several channels at once, or out of order
        frames = data.draw(st.permutations(frames))
    received = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(0, 2)) if received else 0):
        received[data.draw(st.integers(0, len(received) - 1))] = data.draw(st.integers(0, 255))

    at_once, intact = fed([bytes(received)])
    by_byte, still_intact = fed(bytes((byte,)) for byte in received)

    assert intact == still_intact
    assert told(at_once) == told(by_byte) or not intact


def test_a_body_frame_for_an_empty_body_breaks_the_protocol_in_one_piece_too() -> None:
    frames = [*frames_of_delivery(1, "c1", b"", 1000), b"\x03\x00\x01\x00\x00\x00\x00\xce"]

    assert not fed([b"".join(frames)])[1]
    assert not fed(frames)[1]


def test_news_of_the_broker_about_the_connection_is_told() -> None:
    conversation = opened()
    said = (
        commands.Connection.Blocked("low on memory"),
        commands.Connection.Unblocked(),
        commands.Connection.Close(320, "bye", 0, 0),
    )
    events = conversation.feed(b"".join(method_frame(0, each) for each in said))
    [answer] = methods_in(conversation.data_to_send())

    assert events == [Blocked("low on memory"), Unblocked(), BrokerClosed(320, "bye")]
    assert isinstance(answer, commands.Connection.CloseOk)


def test_a_channel_that_is_closed_amid_a_message_takes_it_along() -> None:
    conversation = opened()
    cut = delivery(b"x" * 4000)
    head_only = cut[: cut.rindex(b"\x03\x00\x01")]
    close = method_frame(1, commands.Channel.Close(404, "gone", 0, 0))
    [event] = conversation.feed(head_only + close)

    assert isinstance(event, MethodArrived)
    assert len(conversation.feed(delivery(b"whole"))) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\x00\x01\x00\x00",
        b"\x01\x00\x01\x7f\xff\xff\xff",
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x3c\x00",
        b"\x01\x00\x01\x00\x00\x00\x04\x7f\x3c\x00\x3c\xce",
        b"\x02\x00\x01\x00\x00\x00\x01\x00\xce",
        b"\x07\x00\x01\x00\x00\x00\x01\x00\xce",
        delivery(b"").replace(b"\x02\x00\x01", b"\x03\x00\x01"),
        method_frame(1, commands.Basic.Deliver("c", 1, False, "", ""))
        + b"".join(content_frames(1, write_content_header(MAX_BODY + 1, {}, b""), b"", 4096)),
        b"".join((delivery(b"12345")[:-6], b"123456", b"\xce")),
        method_frame(0, commands.Connection.Tune(100, 8, 60)),
    ],
    ids=[
        "another version",
        "a huge frame",
        "no end",
        "an unknown method",
        "a header of nothing",
        "an unknown type",
        "a body first",
        "a huge message",
        "a wrong size",
        "frames of nothing",
    ],
)
def test_a_peer_that_breaks_the_protocol_is_left(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        opened().feed(data)


# Any bytes may be `basic.recover-async`, of which pamqp says that AMQP 0-9-1 deprecates it.
DEPRECATED = pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")


@DEPRECATED
@given(st.binary(max_size=200))
def test_no_bytes_break_more_than_the_connection(data: bytes) -> None:
    try:
        opened().feed(data)
    except ProtocolError:
        return


@DEPRECATED
@given(st.data())
def test_no_changed_byte_breaks_more_than_the_connection(data: st.DataObject) -> None:
    wire = bytearray(GREETING + delivery(b"body"))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    try:
        Conversation(LOGIN, max_body=MAX_BODY).feed(bytes(wire))
    except ProtocolError:
        return


def test_a_broker_that_offers_no_way_in_is_told_so() -> None:
    with pytest.raises(ProtocolError, match="doesn't offer the SASL mechanism PLAIN"):
        Conversation(LOGIN, max_body=MAX_BODY).feed(start("GSSAPI"))


def test_a_value_that_no_frame_holds_is_refused() -> None:
    with pytest.raises(MessageError):
        method_frame(1, commands.Basic.Cancel(consumer_tag="x" * 300))


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (403, "ACCESS_REFUSED - Login was refused", NotAuthorized),
        (
            404,
            "NOT_FOUND - home node 'b' of durable queue 'q' is down or inaccessible",
            Unavailable,
        ),
        (404, "NOT_FOUND - failed to perform operation on queue 'q' due to timeout", Unavailable),
        (404, "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor", Unavailable),
        (404, "NOT_FOUND - queue 'q' has crashed and failed to restart", Unavailable),
        (404, "NOT_FOUND - no queue 'orders'", EntityNotFound),
        (405, "RESOURCE_LOCKED", InvalidRequest),
        (406, "PRECONDITION_FAILED - inequivalent arg", InvalidRequest),
        (406, "PRECONDITION_FAILED - message size 2 larger than max size 1", MessageTooLarge),
        (530, "NOT_ALLOWED - vhost x not found", NotAuthorized),
        (320, "CONNECTION_FORCED - broker forced connection closure", Unavailable),
        (541, "INTERNAL_ERROR", Unavailable),
        (501, "FRAME_ERROR", Unavailable),
    ],
)
def test_the_codes_of_the_broker(code: int, text: str, error: type[BrokerError]) -> None:
    assert type(error_of(code, text)) is error


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (403, "ACCESS_REFUSED - Login was refused", LoginRefused),
        (530, "NOT_ALLOWED - vhost shop not found", NotAuthorized),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'gw'", NotAuthorized),
        (
            530,
            "NOT_ALLOWED - access to vhost '/' refused for user 'gw': connection limit (0) is"
            " reached",
            Unreachable,
        ),
        (
            530,
            "NOT_ALLOWED - Connection refused for user 'gw': user connection limit (1) is reached",
            Unreachable,
        ),
        (
            530,
            "NOT_ALLOWED - access to vhost 'a' refused for user 'gw': vhost 'a' is down",
            Unreachable,
        ),
        (404, "NOT_FOUND", Unreachable),
        (320, "CONNECTION_FORCED - broker forced connection closure", Unreachable),
        (541, "INTERNAL_ERROR", Unreachable),
    ],
)
def test_a_refused_connection_is_an_outage_unless_the_login_is_wrong(
    code: int, text: str, error: type[BrokerError]
) -> None:
    assert type(refusal_of_connection(code, text)) is error


def test_a_refusal_is_sure_of_a_single_message_only() -> None:
    assert type(error_after_hand_over(403, "ACCESS_REFUSED", 1)) is NotAuthorized
    assert type(error_after_hand_over(403, "ACCESS_REFUSED", 2)) is OutcomeUnknown
    assert type(error_after_hand_over(541, "INTERNAL_ERROR", 1)) is OutcomeUnknown
