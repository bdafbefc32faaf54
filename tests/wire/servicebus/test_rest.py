import json
import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import SCHEDULED, TIME_TO_LIVE, TIMESPAN
from gateway.domain.errors import InvalidRequest, NotSupported, OutcomeUnknown
from gateway.domain.message import (
    Abandon,
    AcceptedBy,
    Complete,
    DataBody,
    DeadLetter,
    Delivery,
    Described,
    Kind,
    Message,
    MessageState,
    ReceiveMode,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.wire.http.date import parse_http_date
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.answers import build_response, parse_response
from gateway.wire.servicebus.custom_properties import properties_of
from gateway.wire.servicebus.operations import (
    MAX_LIMIT,
    Delivered,
    Done,
    Form,
    PeekMessages,
    ProbeEntity,
    ReceiveMessages,
    Renewed,
    RenewLock,
    SendAccepted,
    SendMessages,
    SettleMessage,
)
from gateway.wire.servicebus.rest import build_request, is_message_request, origin_of, parse_request

QUEUE = EntityPath("ut/Orders")
ORIGIN = "http://localhost:8080"
NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)

texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
anything = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True).map(lambda name: "p" + name)
entities = st.from_regex(
    r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,8}(/[A-Za-z0-9_-]{1,8}){0,2}", fullmatch=True
).map(EntityPath)
int64 = st.integers(-(2**63), 2**63 - 1)
seconds = st.datetimes(
    datetime(1970, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC), allow_imaginary=False
).map(lambda date: date.replace(microsecond=0))
dates = st.datetimes(datetime(1970, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC))
floats = st.floats(allow_nan=False, allow_infinity=False)
plain_values = texts | int64 | floats | st.booleans() | seconds
lives = st.timedeltas(timedelta(0), timedelta(days=30_000))


def optional(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


def unique_names(properties: dict) -> bool:
    return len({name.lower() for name in properties}) == len(properties)


@st.composite
def plain_messages(draw, properties=plain_values, content_types=True) -> Message:
    """Messages that REST carries without any loss."""
    session = draw(optional(anything))
    return Message(
        message_id=draw(optional(anything)),
        correlation_id=draw(optional(anything)),
        subject=draw(optional(anything)),
        to=draw(optional(anything)),
        reply_to=draw(optional(anything)),
        reply_to_session_id=draw(optional(anything)),
        session_id=session,
        partition_key=draw(optional(anything)) if session is None else None,
        time_to_live=draw(optional(lives)),
        scheduled=draw(optional(seconds)),
        durable=draw(optional(st.booleans())),
        content_type=draw(optional(st.sampled_from(["text/plain; charset=utf-8", "a/b"])))
        if content_types
        else None,
        body=draw(st.binary(max_size=30)),
        properties=draw(st.dictionaries(names, properties, max_size=4).filter(unique_names)),
    )


@st.composite
def text_messages(draw) -> Message:
    message = draw(plain_messages(properties=anything, content_types=False))
    return attrs.evolve(message, body=draw(anything).encode())


rich_values = st.recursive(
    st.none()
    | plain_values
    | st.uuids()
    | st.binary(max_size=10)
    | st.builds(Typed, st.just(Kind.UBYTE), st.integers(0, 255))
    | st.integers(-(2**62), 2**62).map(lambda ticks: Described(TIMESPAN, ticks)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
bodies = (
    st.binary(max_size=30)
    | st.lists(st.binary(max_size=5), min_size=2, max_size=3).map(lambda p: DataBody(tuple(p)))
    | rich_values.map(ValueBody)
    | st.lists(rich_values, max_size=3).map(lambda values: SequenceBody((tuple(values),)))
)


@st.composite
def rich_messages(draw) -> Message:
    message = draw(plain_messages(properties=rich_values))
    life = message.time_to_live
    return attrs.evolve(
        message,
        body=draw(bodies),
        message_id=draw(optional(st.uuids() | anything)),
        priority=draw(optional(st.integers(0, 255))),
        time_to_live=None if life is None else timedelta(seconds=int(life.total_seconds())),
        annotations=draw(st.dictionaries(st.just("x-note"), plain_values)),
    )


def deliveries(messages, moments) -> st.SearchStrategy[Delivery]:
    return st.builds(
        Delivery,
        message=messages,
        sequence_number=int64,
        lock_token=st.uuids().map(str),
        delivery_count=st.integers(1, 2**31),
        enqueued=optional(moments),
        enqueued_sequence_number=optional(int64.filter(bool)),  # 0 says that there is none
        locked_until=optional(moments),
        expires=optional(moments),
        state=st.sampled_from(MessageState),
        dead_letter_source=optional(texts),
    )


locks = {"entity": entities, "message": st.text(min_size=1, max_size=8), "lock_token": st.text()}
settlements = (
    st.just(Complete())
    | st.builds(Abandon, delivered=st.booleans())
    | st.builds(DeadLetter, reason=anything, description=anything)
)
sends = (
    st.builds(SendMessages, entity=entities, messages=plain_messages().map(lambda m: (m,)))
    | st.builds(
        SendMessages,
        entity=entities,
        messages=st.lists(text_messages(), min_size=1, max_size=3).map(tuple),
        form=st.just(Form.JSON),
    )
    | st.builds(
        SendMessages,
        entity=entities,
        messages=st.lists(rich_messages(), min_size=1, max_size=3).map(tuple),
        form=st.just(Form.AMQP),
    )
)
receives = st.builds(
    ReceiveMessages,
    entity=entities,
    mode=st.sampled_from(ReceiveMode),
    timeout=st.integers(0, 3600).map(float),
    limit=optional(st.integers(1, MAX_LIMIT)),
)
peeks = st.builds(
    PeekMessages, entity=entities, from_sequence=int64, limit=st.integers(1, MAX_LIMIT)
)
others = (
    st.builds(SettleMessage, **locks, settlement=settlements)
    | st.builds(RenewLock, **locks)
    | st.builds(ProbeEntity, entity=entities)
)


def headers_of(**fields: str) -> Headers:
    return Headers.of({name.replace("_", "-"): value for name, value in fields.items()})


def post(target: str, headers: Headers = Headers(), body: bytes = b"") -> Request:  # noqa: B008
    return Request(method="POST", target=target, headers=headers, body=body)


# Round trips


@given(sends | receives | peeks | others)
def test_a_request_says_the_operation_and_nothing_else(operation):
    request = build_request(operation)

    assert is_message_request(request)
    assert parse_request(request) == operation


@pytest.mark.slow
@given(receives | peeks, st.lists(deliveries(rich_messages(), dates), max_size=3))
def test_between_pairgates_a_delivery_arrives_with_every_type(operation, found):
    rich = attrs.evolve(operation, limit=9)
    answer = Delivered(deliveries=tuple(found))

    assert parse_response(rich, build_response(rich, answer, ORIGIN)) == answer


@pytest.mark.parametrize("kind", [ReceiveMessages, PeekMessages])
def test_more_messages_than_were_wanted_are_no_answer(kind):
    wanted, more = kind(entity=QUEUE, limit=2), kind(entity=QUEUE, limit=3)
    found = (Delivery(message=Message(), sequence_number=1),) * 3
    response = build_response(more, Delivered(deliveries=found), ORIGIN)

    with pytest.raises(OutcomeUnknown, match="3 messages, where 2 were wanted"):
        parse_response(wanted, response)


@given(receives, deliveries(plain_messages(), seconds))
def test_a_plain_delivery_arrives_whole(operation, delivery):
    plain = attrs.evolve(operation, limit=None)
    life = delivery.message.time_to_live
    known = delivery.enqueued is not None and life is not None
    sent = attrs.evolve(delivery, expires=delivery.enqueued + life if known else None)

    response = build_response(plain, Delivered(deliveries=(sent,)), ORIGIN)

    assert parse_response(plain, response).deliveries == (sent,)


@pytest.mark.parametrize("limit", [None, 9])
def test_a_delivery_was_received_at_the_date_of_its_answer(limit):
    operation = ReceiveMessages(entity=QUEUE, limit=limit)
    answer = Delivered(deliveries=(Delivery(message=Message(), sequence_number=1),))
    response = build_response(operation, answer, ORIGIN)
    fields = [*response.headers.items, ("Date", "Thu, 01 Jan 2026 00:00:01 GMT")]
    dated = attrs.evolve(response, headers=Headers.of(fields))

    (arrived,) = parse_response(operation, dated).deliveries
    (undated,) = parse_response(operation, response).deliveries

    assert arrived.received == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert undated.received is None


@pytest.mark.parametrize(("hours", "left"), [(2, 2), (0, 0), (-1, 0)])
def test_a_plain_delivery_tells_the_time_to_live_that_counts(hours, left):
    operation = ReceiveMessages(entity=QUEUE)
    delivery = Delivery(
        message=Message(time_to_live=timedelta(days=1)),
        sequence_number=1,
        lock_token="t",
        enqueued=NOON,
        expires=NOON + timedelta(hours=hours),
    )

    response = build_response(operation, Delivered(deliveries=(delivery,)), ORIGIN)

    (arrived,) = parse_response(operation, response).deliveries
    assert arrived.message.time_to_live == timedelta(hours=left)


@pytest.mark.slow
@given(sends, st.sampled_from(AcceptedBy))
def test_an_accepted_send_says_who_accepted_it(operation, accepted_by):
    answer = SendAccepted(accepted_by=accepted_by)

    assert parse_response(operation, build_response(operation, answer, ORIGIN)) == answer


@given(others, optional(dates))
def test_other_answers_come_back(operation, date):
    answer = Renewed(locked_until=date) if isinstance(operation, RenewLock) else Done()

    assert parse_response(operation, build_response(operation, answer, ORIGIN)) == answer


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]),
    st.sampled_from(["/q/messages", "/q/messages/head", "/q/messages/1/t/$dead-letter", "/", ""])
    | st.text().map(lambda text: "/" + text),
    st.dictionaries(
        st.sampled_from(["Content-Type", "BrokerProperties", "X-Pairgate-Receive", "n", "N"]),
        st.sampled_from([form.value for form in Form]) | st.text(),
    ),
    st.binary() | st.text().map(str.encode),
)
def test_garbage_is_refused_as_the_callers_fault(method, target, fields, body):
    request = Request(method=method, target=target, headers=Headers.of(fields), body=body)

    with suppress(InvalidRequest):
        parse_request(request)


# Requests and answers of Service Bus's clients


def test_a_send_of_the_python_client_is_read_with_all_types():
    request = post(
        "/myq/messages",
        Headers.of(
            {
                "Content-Type": "application/atom+xml;type=entry;charset=utf-8",
                "BrokerProperties": '{"MessageId": "7", "Label": "new", "TimeToLive": "60",'
                ' "ForcePersistence": "false", "Unknown": 1}',
                "Authorization": "SharedAccessSignature sr=x",
                "Accept": "*/*",
                "Content-Length": "5",
                "a": '"x \\"q\\""',
                "n": "1",
                "f": "1.5",
                "t": "true",
                "d": '"Fri, 02 Jan 2026 00:00:00 GMT"',
                "Path": '"C:\\new"',
            }
        ),
        b"\x00body",
    )

    (message,) = parse_request(request).messages

    assert message == Message(
        message_id="7",
        subject="new",
        time_to_live=timedelta(seconds=60),
        durable=False,
        content_type="application/atom+xml;type=entry;charset=utf-8",
        body=b"\x00body",
        properties={
            "a": 'x "q"',
            "n": 1,
            "f": 1.5,
            "t": True,
            "d": datetime(2026, 1, 2, tzinfo=UTC),
            "Path": "C:\\new",
        },
    )


def test_a_batch_of_the_python_client_is_read():
    body = (
        b'[{"Body":"m1","BrokerProperties":{"TimeToLiveTimeSpan":"0.00:00:40"},'
        b'"UserProperties":{"n":"1"}},{"Body":"m2"}]'
    )
    request = post(
        "/q/messages", headers_of(content_type="application/vnd.microsoft.servicebus.json"), body
    )

    assert parse_request(request) == SendMessages(
        entity=EntityPath("q"),
        messages=(
            Message(body=b"m1", time_to_live=timedelta(seconds=40), properties={"n": "1"}),
            Message(body=b"m2"),
        ),
        form=Form.JSON,
    )


def test_a_locked_message_is_answered_as_service_bus_does():
    operation = ReceiveMessages(entity=QUEUE)
    delivery = Delivery(
        message=Message(message_id="7", body=b"hello", content_type="text/plain"),
        sequence_number=42,
        lock_token="ab-cd",
        delivery_count=1,
        enqueued=NOON,
        locked_until=NOON + timedelta(minutes=1),
    )

    response = build_response(operation, Delivered(deliveries=(delivery,)), ORIGIN)

    assert response.status == 201
    assert response.body == b"hello"
    assert response.headers.get("Location") == f"{ORIGIN}/ut/Orders/messages/42/ab-cd"
    assert response.headers.get("X-Pairgate") == "1"
    assert json.loads(response.headers.get("BrokerProperties")) == {
        "TimeToLive": 922337203685.47754,
        "MessageId": "7",
        "DeliveryCount": 1,
        "SequenceNumber": 42,
        "EnqueuedSequenceNumber": 0,  # as in the example of learn, "Peek-Lock Message"
        "State": "Active",
        "LockToken": "ab-cd",
        "EnqueuedTimeUtc": "Fri, 02 Jan 2026 12:00:00 GMT",
        "LockedUntilUtc": "Fri, 02 Jan 2026 12:01:00 GMT",
    }


def test_no_time_to_live_is_none_again():
    operation = ReceiveMessages(entity=QUEUE)
    headers = headers_of(BrokerProperties='{"SequenceNumber":1,"TimeToLive":922337203685.47754}')

    (delivery,) = parse_response(operation, Response(status=201, headers=headers)).deliveries

    assert delivery.message.time_to_live is None


def test_the_lock_token_of_the_location_serves_where_broker_properties_have_none():
    headers = headers_of(Location="https://ns/q/messages/1/tok%2Fen", BrokerProperties="{}")

    answer = parse_response(ReceiveMessages(entity=QUEUE), Response(status=201, headers=headers))

    assert answer.deliveries[0].lock_token == "tok/en"


@pytest.mark.parametrize(
    ("target", "entity"),
    [
        ("/q/messages", "q"),
        ("/a/b/messages", "a/b"),
        ("/a%2Fb/messages", "a/b"),
        ("/messages/messages", "messages"),
        ("/q/MESSAGES?api-version=1", "q"),
        ("/q/$DeadLetterQueue/messages", "q/$DeadLetterQueue"),
        ("/q/%24DeadLetterQueue/messages", "q/$DeadLetterQueue"),
        ("/txt/.-_123/messages", "txt/.-_123"),
        ("/t/subscriptions/s/messages/head", "t/subscriptions/s"),
        ("/t/subscriptions/s/$DeadLetterQueue/messages/head", "t/subscriptions/s/$DeadLetterQueue"),
        ("/t/subscriptions/s/messages/1/lock", "t/subscriptions/s"),
    ],
)
def test_entities_are_read_from_the_right(target, entity):
    assert parse_request(post(target)).entity.name == entity


@pytest.mark.parametrize("target", ["/", "/q", "/messages", "/$Resources/queues", "/q/messages/1"])
def test_other_paths_are_not_these_operations(target):
    assert not is_message_request(post(target))


def test_a_receive_without_a_time_waits_for_a_minute():
    assert parse_request(post("/q/messages/head")).timeout == 60.0


def test_a_wait_is_rounded_up_to_whole_seconds():
    request = build_request(ReceiveMessages(entity=QUEUE, timeout=0.2))

    assert request.target == "/ut/Orders/messages/head?timeout=1"


def test_a_pairgate_waits_for_parts_of_a_second():
    request = build_request(ReceiveMessages(entity=QUEUE, timeout=4.52, limit=1))

    assert request.target == "/ut/Orders/messages/head?timeout=4.520"
    assert parse_request(attrs.evolve(request, headers=Headers())).timeout == 4.52


def test_the_location_echoes_the_host_of_the_client():
    request = post("/q/messages", headers_of(host="LocalHost:23001"))

    assert origin_of(request, secure=True) == "https://LocalHost:23001"
    assert origin_of(post("/q", headers_of(host="a b")), secure=False) == "http://localhost"


# Values that REST can't carry


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"bytes",
        [1],
        {"a": 1},
        UUID(int=1),
        symbol("s"),
        Typed(Kind.INT, 1),
        2**63,
        math.inf,
        math.nan,
        "a\nb",
        "Fri, 02 Jan 2026 00:00:00 GMT",
        datetime(2026, 1, 2, 0, 0, 0, 1, tzinfo=UTC),
        Described(symbol("com.microsoft:uri"), "http://x"),
    ],
)
def test_a_client_refuses_a_value_that_would_arrive_as_another(value):
    message = Message(properties={"colour": value})

    with pytest.raises(NotSupported, match="'colour'"):
        build_request(SendMessages(entity=QUEUE, messages=(message,)))


@pytest.mark.parametrize(
    "name", ["a b", "", "ä", "Content-Type", "Host", "X-Pairgate-Accepted-By", "a:b"]
)
def test_a_client_refuses_a_name_that_would_not_arrive(name):
    message = Message(properties={name: "value"})

    with pytest.raises(NotSupported, match="application property"):
        build_request(SendMessages(entity=QUEUE, messages=(message,)))


def test_a_client_refuses_names_that_differ_in_case_only():
    message = Message(properties={"a": 1, "A": 2})

    with pytest.raises(NotSupported, match="'A'"):
        build_request(SendMessages(entity=QUEUE, messages=(message,)))


@pytest.mark.parametrize(
    "message",
    [
        Message(body=ValueBody("text")),
        Message(body=DataBody((b"a", b"b"))),
        Message(content_encoding="gzip"),
        Message(annotations={"x-note": 1}),
        Message(footer={"x-sum": 1}),
        Message(user_id=b"me"),
        Message(message_id=UUID(int=1)),
        Message(content_type="text/plain\r\nX: y"),
        Message(content_type=Form.AMQP.value),
    ],
)
def test_a_client_refuses_parts_that_rest_has_no_place_for(message):
    with pytest.raises(NotSupported):
        build_request(SendMessages(entity=QUEUE, messages=(message,)))


def test_the_legacy_envelope_travels_as_text():
    date = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    span = Described(TIMESPAN, 900_000_001)
    message = Message(properties={TIME_TO_LIVE: span, SCHEDULED: date})

    request = build_request(SendMessages(entity=QUEUE, messages=(message,)))

    assert request.headers.get(TIME_TO_LIVE) == '"0.00:01:30.0000001"'
    assert request.headers.get(SCHEDULED) == '"Fri, 02 Jan 2026 03:04:05 GMT"'


def test_a_schedule_is_never_early():
    message = Message(scheduled=NOON + timedelta(microseconds=1))

    request = build_request(SendMessages(entity=QUEUE, messages=(message,)))

    broker = json.loads(request.headers.get("BrokerProperties"))
    assert parse_http_date(broker["ScheduledEnqueueTimeUtc"]) == NOON + timedelta(seconds=1)


def test_a_front_end_hands_out_what_can_be_written():
    message = Message(
        message_id=UUID(int=7),
        body=ValueBody("grüße"),
        properties={
            "id": UUID(int=1),
            "size": Typed(Kind.UINT, 5),
            "list": [1],
            "bad name": 1,
            "line": "a\nb",
            "Server": "mine",
        },
    )
    delivery = Delivery(message=message, sequence_number=1)
    operation = ReceiveMessages(entity=QUEUE, mode=ReceiveMode.RECEIVE_AND_DELETE)

    response = build_response(operation, Delivered(deliveries=(delivery,)), ORIGIN)

    (arrived,) = parse_response(operation, response).deliveries
    assert response.status == 200
    assert arrived.message.properties == {"id": str(UUID(int=1)), "size": 5}
    assert arrived.message.message_id == str(UUID(int=7))
    assert arrived.message.body == "grüße".encode()


# Requests that are wrong


@pytest.mark.parametrize(
    ("broker", "named"),
    [
        ("{", "BrokerProperties"),
        ("[]", "an object expected"),
        ('{"MessageId":"1","MessageId":"2"}', "'MessageId' is given twice"),
        ('{"TimeToLive":NaN}', "NaN"),
        ('{"TimeToLive":1e999}', "out of range"),
        ('{"TimeToLive":-1}', "TimeToLive"),
        ('{"TimeToLive":true}', "TimeToLive"),
        ('{"TimeToLive":' + "9" * 5000 + "}", "digits"),
        ('{"MessageId":' + "[" * 60000 + "}", "BrokerProperties"),
        ('{"Label":"' + "x" * 70000 + '"}', "65536"),
        ('{"MessageId":7}', "MessageId"),
        ('{"MessageId":"\\ud800"}', "MessageId"),
        ('{"ScheduledEnqueueTimeUtc":"soon"}', "ScheduledEnqueueTimeUtc"),
        ('{"ForcePersistence":"maybe"}', "ForcePersistence"),
        ('{"TimeToLiveTimeSpan":"40s"}', "TimeToLiveTimeSpan"),
        ('{"SessionId":"a","PartitionKey":"b"}', "PartitionKey"),
    ],
)
def test_broker_properties_are_refused_by_name(broker, named):
    with pytest.raises(InvalidRequest, match=named):
        parse_request(post("/q/messages", headers_of(BrokerProperties=broker)))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{}", "array"),
        (b"[]", "array"),
        (b"[1]", "message 0"),
        (b'[{"Body":"a"},{"Body":1}]', "message 1: Body"),
        (b'[{"UserProperties":{"a":[]}}]', "message 0: UserProperties: a"),
        (b'[{"UserProperties":[]}]', "message 0: UserProperties"),
        (b'[{"BrokerProperties":{"TimeToLive":"x"}}]', "message 0: .*TimeToLive"),
        (b"\xff", "batch"),
    ],
)
def test_a_batch_is_refused_by_message_and_field(body, named):
    headers = headers_of(content_type=Form.JSON.value)

    with pytest.raises(InvalidRequest, match=named):
        parse_request(post("/q/messages", headers, body))


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"\x00\x00\x00\x05abc", b"\x00\x00\x00\x01\xff", b"\xff" * 9]
)
def test_frames_that_do_not_add_up_are_refused(body):
    with pytest.raises(InvalidRequest):
        parse_request(post("/q/messages", headers_of(content_type=Form.AMQP.value), body))


@pytest.mark.parametrize(
    ("target", "headers", "named"),
    [
        ("/q/messages/head?timeout=-1", Headers(), "timeout"),
        ("/q/messages/head?timeout=nan", Headers(), "timeout"),
        ("/q/messages/head", headers_of(X_Pairgate_Receive="limit=0"), "limit"),
        ("/q/messages/head", headers_of(X_Pairgate_Receive="limit=99999"), "limit"),
        ("/q/messages/head", headers_of(X_Pairgate_Receive="100"), "limit"),
        ("/q//messages", Headers(), "entity name"),
        ("/%C3%A4/messages", Headers(), "entity name"),
    ],
)
def test_a_request_is_refused_by_field(target, headers, named):
    with pytest.raises(InvalidRequest, match=named):
        parse_request(post(target, headers))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("TraceParent", "00-a-b-01")], {"traceparent": "00-a-b-01"}),
        ([("diagnostic-id", "00-a-b-01")], {"Diagnostic-Id": "00-a-b-01"}),
        ([("tracestate", "a=1"), ("tracestate", "b=2")], {"tracestate": "a=1,b=2"}),
        ([("traceparent", "00-a-b-01"), ("traceparent", "00-c-d-01")], {}),
        ([("traceparent", "")], {}),
        ([("traceparent", '"mine"'), ("tracestate", "a=1")], {"traceparent": "mine"}),
        ([("tracestate", "a=1"), ("Diagnostic-Id", '"mine"')], {"Diagnostic-Id": "mine"}),
    ],
)
def test_the_trace_context_of_a_request_is_the_message_s_unless_that_has_one(
    fields: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    assert properties_of(Headers.of(fields)) == expected


def test_a_property_given_twice_is_refused():
    with pytest.raises(InvalidRequest, match="given twice"):
        parse_request(post("/q/messages", Headers.of([("a", "1"), ("A", "2")])))


def test_a_dead_letter_reason_is_bounded():
    body = json.dumps({"reason": "x" * 4097}).encode()
    request = Request(method="PUT", target="/q/messages/1/t/$dead-letter", body=body)

    with pytest.raises(InvalidRequest, match="reason"):
        parse_request(request)


# Answers that can't be believed


def test_an_operation_between_pairgates_is_not_believed_from_anybody_else():
    send = SendMessages(entity=QUEUE, messages=(Message(),), form=Form.AMQP)

    with pytest.raises(OutcomeUnknown, match="isn't from a Pairgate"):
        parse_response(send, Response(status=201))


def test_a_success_that_was_not_asked_for_is_unknown():
    send = SendMessages(entity=QUEUE, messages=(Message(),))

    with pytest.raises(OutcomeUnknown):
        parse_response(send, Response(status=200, body=b"<html>a captive portal</html>"))


def test_a_delivery_that_cannot_be_read_is_unknown():
    response = Response(status=201, headers=headers_of(BrokerProperties="{"))

    with pytest.raises(OutcomeUnknown, match="BrokerProperties"):
        parse_response(ReceiveMessages(entity=QUEUE), response)
