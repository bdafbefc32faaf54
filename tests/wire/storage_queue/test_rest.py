"""
The codec of the Queue service: built requests and answers are read unchanged, and bad input is
named.
"""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import errors
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    Outcome,
    OutcomeUnknown,
)
from gateway.wire.http.hardened_xml import is_legal
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.address import Address, build_target, locate
from gateway.wire.storage_queue.answers import Style, build_response, parse_response
from gateway.wire.storage_queue.errors import (
    CODES,
    StorageRefusal,
    Trace,
    build_error,
    build_refusal,
    parse_error,
)
from gateway.wire.storage_queue.fields import md5_of
from gateway.wire.storage_queue.rest import build_request, parse_request
from gateway.wire.storage_queue.xml import as_text, parse_text

HERE = "http://127.0.0.1:10001/contoso"
VERSION = ("x-ms-version", "2026-10-06")
TRACE = Trace(request_id="id", time="now")

names = st.from_regex(r"[a-z0-9](-?[a-z0-9]){2,20}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40).filter(is_legal)
words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
receipts = st.binary(min_size=1, max_size=20).map(
    lambda receipt: base64.b64encode(receipt).decode()
)
dates = st.datetimes(
    datetime(2000, 1, 1),
    datetime(9000, 1, 1),
    timezones=st.just(UTC),
).map(lambda date: date.replace(microsecond=0))
bodies = texts.filter(lambda text: "\r" not in text).map(str.encode)
metadata = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), words, max_size=4
).filter(lambda found: len({name.lower() for name in found}) == len(found))
policies = st.lists(
    st.builds(
        storage.StoredPolicy,
        id=words,
        start=st.none() | st.just("2026-01-01T00:00:00.0000000Z"),
        expiry=st.none() | st.just("2026-02-01T00:00:00.0000000Z"),
        permission=st.none() | st.sampled_from(["r", "raup", "p"]),
    ),
    max_size=5,
    unique_by=lambda policy: policy.id,
).map(tuple)
retention = st.just(storage.RetentionPolicy()) | st.builds(
    storage.RetentionPolicy, enabled=st.booleans(), days=st.integers(1, 365)
)
metrics = st.builds(
    storage.Metrics,
    enabled=st.booleans(),
    include_apis=st.booleans(),
    retention=retention,
)
cors = st.builds(
    storage.CorsRule,
    origins=st.sampled_from(["*", "https://a.example,https://b.example"]),
    methods=st.sampled_from(["GET", "GET,PUT"]),
    headers=st.sampled_from(["", "x-ms-meta-*,accept"]),
    exposed=st.sampled_from(["", "*"]),
    max_age=st.integers(0, 10**9),
)
properties = st.builds(
    storage.ServiceProperties,
    logging=st.none()
    | st.builds(
        storage.LoggingProperties,
        delete=st.booleans(),
        read=st.booleans(),
        write=st.booleans(),
        retention=retention,
    ),
    hour_metrics=st.none() | metrics,
    minute_metrics=st.none() | metrics,
    cors=st.none() | st.lists(cors, max_size=5).map(tuple),
)
hidden = st.integers(0, storage.MAX_VISIBILITY)
operations: st.SearchStrategy[storage.Operation] = st.one_of(
    st.builds(
        storage.ListQueues,
        prefix=texts,
        marker=texts,
        limit=st.none() | st.integers(1, 5000),
        with_metadata=st.booleans(),
    ),
    st.builds(storage.CreateQueue, queue=names, metadata=metadata),
    st.builds(storage.DeleteQueue, queue=names),
    st.builds(storage.GetMetadata, queue=names),
    st.builds(storage.SetMetadata, queue=names, metadata=metadata),
    st.builds(storage.GetAcl, queue=names),
    st.builds(storage.SetAcl, queue=names, policies=policies),
    st.builds(
        storage.PutMessage,
        queue=names,
        body=bodies,
        visibility=st.integers(0, 1000),
        time_to_live=st.just(-1) | st.integers(1001, 2**37),
    ),
    st.builds(storage.PutMessage, queue=names, body=st.binary(max_size=99), is_raw=st.just(True)),
    st.builds(
        storage.GetMessages,
        queue=names,
        limit=st.integers(1, 32),
        visibility=st.integers(1, storage.MAX_VISIBILITY),
    ),
    st.builds(storage.PeekMessages, queue=names, limit=st.integers(1, 32)),
    st.builds(
        storage.UpdateMessage,
        queue=names,
        message_id=words,
        pop_receipt=receipts,
        visibility=hidden,
        body=st.none() | bodies,
    ),
    st.builds(storage.DeleteMessage, queue=names, message_id=words, pop_receipt=receipts),
    st.builds(storage.ClearMessages, queue=names),
    st.builds(storage.GetServiceProperties),
    st.builds(storage.SetServiceProperties, properties=properties),
    st.builds(storage.GetStats),
    st.builds(storage.GetUserDelegationKey, start=st.none() | dates, expiry=dates),
    st.builds(
        storage.Preflight,
        origin=words,
        method=st.sampled_from(["GET", "PUT"]),
        headers=st.lists(st.sampled_from(["accept", "x-ms-meta-a"]), max_size=2).map(tuple),
    ),
)


def sent(request: Request) -> storage.Operation:
    """
    Return the operation that a server reads; a request that puts a raw message has no version.
    """
    fields = [("Host", "127.0.0.1:10001"), *request.headers.items]
    if (
        request.method != "PUT"
        or "/messages" not in request.target
        or "popreceipt" in request.target
    ):
        fields.append(VERSION)
    target = f"/contoso{request.target}"
    arrived = attrs.evolve(request, target=target, headers=Headers.of(fields))
    return parse_request(arrived, locate(arrived, {"contoso"}, secure=False))


@given(operations)
def test_requests_are_read_as_they_were_meant(operation: storage.Operation) -> None:
    assert sent(build_request(operation)) == operation


messages = st.builds(
    storage.QueueMessage,
    message_id=words,
    inserted=dates,
    expires=st.none() | dates,
    pop_receipt=st.none() | words,
    visible=st.none() | dates,
    dequeues=st.none() | st.integers(0, 2**31),
    body=st.none() | bodies,
)
exchanges = st.one_of(
    st.tuples(
        st.builds(storage.ListQueues, with_metadata=st.just(True), prefix=words),
        st.builds(
            storage.QueueList,
            items=st.lists(
                st.builds(storage.QueueItem, name=names, metadata=metadata), max_size=3
            ).map(tuple),
            next_marker=st.just("") | names,
        ),
    ),
    st.tuples(
        st.builds(storage.CreateQueue, queue=names),
        st.sampled_from([storage.Created(), storage.Existed()]),
    ),
    st.tuples(
        st.builds(storage.GetMetadata, queue=names),
        st.builds(storage.QueueMetadata, metadata=metadata, count=st.integers(0, 10**9)),
    ),
    st.tuples(st.builds(storage.GetAcl, queue=names), st.builds(storage.Acl, policies)),
    st.tuples(
        st.builds(storage.PutMessage, queue=names, body=bodies)
        | st.builds(storage.GetMessages, queue=names, limit=st.just(3))
        | st.builds(storage.PeekMessages, queue=names, limit=st.just(3)),
        st.builds(storage.Messages, st.lists(messages, max_size=3).map(tuple)),
    ),
    st.tuples(
        st.builds(
            storage.UpdateMessage,
            queue=names,
            message_id=words,
            pop_receipt=words,
            visibility=hidden,
        ),
        st.builds(storage.Updated, pop_receipt=words, visible=dates),
    ),
    st.tuples(
        st.builds(storage.DeleteQueue, queue=names)
        | st.builds(storage.SetServiceProperties, properties=properties),
        st.just(storage.Done()),
    ),
    st.tuples(st.builds(storage.GetServiceProperties), properties),
    st.tuples(st.builds(storage.GetStats), st.builds(storage.Stats, last_sync=dates)),
    st.tuples(
        st.builds(storage.GetUserDelegationKey, expiry=dates),
        st.builds(
            storage.UserDelegationKey,
            **dict.fromkeys(
                ("object_id", "tenant_id", "start", "expiry", "service", "value"), words
            ),
            version=words,
        ),
    ),
)


@given(exchanges)
def test_answers_are_read_as_they_were_meant(
    exchange: tuple[storage.Operation, storage.Answer],
) -> None:
    operation, answer = exchange

    assert parse_response(operation, build_response(operation, answer, Style())) == answer


@given(st.binary(max_size=60))
def test_a_body_that_xml_cannot_hold_goes_as_base64(body: bytes) -> None:
    text = as_text(body)

    assert is_legal(text)
    assert text.encode() == body or base64.b64decode(text) == body


@pytest.mark.parametrize("kind", [storage.GetMessages, storage.PeekMessages])
def test_more_messages_than_were_wanted_are_no_answer(kind: type[storage.GetMessages]) -> None:
    item = storage.QueueMessage(message_id="an-id", inserted=datetime(2026, 1, 1, tzinfo=UTC))
    operation = kind(queue="orders", limit=2)
    response = build_response(operation, storage.Messages((item,) * 3), Style())

    with pytest.raises(StorageRefusal, match="3 messages, where 2 were wanted"):
        parse_response(operation, response)


def test_the_largest_answer_is_read() -> None:
    item = storage.QueueMessage(
        message_id="an-id", inserted=datetime(2026, 1, 1, tzinfo=UTC), body=b"&" * 65536
    )
    get, whole = storage.GetMessages(queue="orders", limit=32), storage.Messages((item,) * 32)

    assert parse_response(get, build_response(get, whole, Style())) == whole


def test_answers_look_as_the_service_s() -> None:
    item = storage.QueueMessage(
        message_id="an-id",
        inserted=datetime(2026, 1, 1, tzinfo=UTC),
        pop_receipt="r",
        visible=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=30),
        dequeues=1,
        body=b"a <b>",
    )
    get = storage.GetMessages(queue="orders")
    found = build_response(get, storage.Messages((item,)), Style())

    assert found.body.decode() == (
        '<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage>'
        "<MessageId>an-id</MessageId><InsertionTime>Thu, 01 Jan 2026 00:00:00 GMT</InsertionTime>"
        "<ExpirationTime>Fri, 31 Dec 9999 23:59:59 GMT</ExpirationTime><PopReceipt>r</PopReceipt>"
        "<TimeNextVisible>Thu, 01 Jan 2026 00:00:30 GMT</TimeNextVisible>"
        "<DequeueCount>1</DequeueCount><MessageText>a &lt;b&gt;</MessageText>"
        "</QueueMessage></QueueMessagesList>"
    )
    none = build_response(get, storage.Messages(), Style())
    assert none.body.endswith(b"<QueueMessagesList />")
    first = build_response(get, storage.Messages((item,)), Style(is_first=True))
    assert b"<MessageText>YSA8Yj4=</MessageText>" in first.body
    old = build_response(
        storage.ListQueues(),
        storage.QueueList(items=(storage.QueueItem(name="orders"),)),
        Style(is_first=True, endpoint=HERE),
    )
    assert f"<QueueName>orders</QueueName><Url>{HERE}/orders</Url>".encode() in old.body


def refusal_of(method: str, target: str, body: bytes = b"", **fields: str) -> StorageRefusal:
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **dict([VERSION])}
    headers |= {name.replace("_", "-"): value for name, value in fields.items()}
    request = Request(
        method=method, target=f"/contoso{target}", headers=Headers.of(headers), body=body
    )
    with pytest.raises(StorageRefusal) as caught:
        parse_request(request, locate(request, {"contoso"}, secure=False))
    return caught.value


TEXT = b"<QueueMessage><MessageText>x</MessageText></QueueMessage>"


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("GET", "/?comp=nothing", b"", "InvalidQueryParameterValue"),
        ("GET", "/?restype=other&comp=list", b"", "InvalidQueryParameterValue"),
        ("GET", "/orders", b"", "UnsupportedHttpVerb"),
        ("GET", "/", b"", "InvalidUri"),
        ("PATCH", "/orders", b"", "UnsupportedHttpVerb"),
        ("GET", "/orders/other", b"", "InvalidUri"),
        ("GET", "/orders/messages/a/b", b"", "InvalidUri"),
        ("GET", "/?comp=list&maxresults=0", b"", "OutOfRangeQueryParameterValue"),
        ("GET", "/?comp=list&maxresults=5001", b"", "OutOfRangeQueryParameterValue"),
        ("GET", "/?comp=list&include=all", b"", "InvalidQueryParameterValue"),
        ("PUT", "/or--ders", b"", "InvalidResourceName"),
        ("PUT", "/-orders", b"", "InvalidResourceName"),
        ("PUT", "/Orders", b"", "InvalidResourceName"),
        ("PUT", "/or", b"", "OutOfRangeInput"),
        ("PUT", f"/{'a' * 64}", b"", "OutOfRangeInput"),
        ("POST", "/orders/messages", b"<QueueMessage>", "InvalidXmlDocument"),
        ("POST", "/orders/messages", b"<QueueMessage/>", "InvalidXmlDocument"),
        ("POST", "/orders/messages", b"", "InvalidXmlDocument"),
        ("POST", "/orders/messages", TEXT.replace(b">x", b">&#0;"), "InvalidXmlDocument"),
        (
            "POST",
            "/orders/messages",
            TEXT.replace(b">x", b">x" + b"x" * 65536),
            "RequestBodyTooLarge",
        ),
        ("POST", "/orders/messages", b" " * 131_585, "RequestBodyTooLarge"),
        ("POST", "/orders/messages?messagettl=0", TEXT, "InvalidQueryParameterValue"),
        ("POST", "/orders/messages?messagettl=-2", TEXT, "OutOfRangeQueryParameterValue"),
        ("POST", f"/orders/messages?messagettl={10**20 + 1}", TEXT, "InvalidQueryParameterValue"),
        ("POST", "/orders/messages?messagettl=x", TEXT, "InvalidQueryParameterValue"),
        ("GET", "/orders/messages?numofmessages=0", b"", "OutOfRangeQueryParameterValue"),
        ("GET", "/orders/messages?visibilitytimeout=0", b"", "OutOfRangeQueryParameterValue"),
        ("PUT", "/orders/messages/a?visibilitytimeout=1", b"", "MissingRequiredQueryParameter"),
        ("PUT", "/orders/messages/a?popreceipt=r", b"", "InvalidQueryParameterValue"),
        ("DELETE", "/orders/messages/a?popreceipt=r", b"", "InvalidQueryParameterValue"),
        ("PUT", "/orders/messages/a?popreceipt=cg==", b"", "MissingRequiredQueryParameter"),
        ("DELETE", "/orders/messages/a", b"", "MissingRequiredQueryParameter"),
        ("PUT", "/orders?comp=acl", b"<Other/>", "InvalidXmlDocument"),
        (
            "PUT",
            "/orders?comp=acl",
            b"<SignedIdentifiers><SignedIdentifier><Id>a</Id><AccessPolicy><Permission>x"
            b"</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>",
            "InvalidXmlDocument",
        ),
        (
            "PUT",
            "/orders?comp=acl",
            b"<SignedIdentifiers>"
            + b"<SignedIdentifier><Id>a</Id></SignedIdentifier>" * 2
            + b"</SignedIdentifiers>",
            "InvalidXmlDocument",
        ),
        (
            "PUT",
            "/?restype=service&comp=properties",
            b"<StorageServiceProperties><HourMetrics><Enabled>true</Enabled><IncludeAPIs>true"
            b"</IncludeAPIs><RetentionPolicy><Enabled>true</Enabled></RetentionPolicy>"
            b"</HourMetrics></StorageServiceProperties>",
            "InvalidXmlDocument",
        ),
        (
            "PUT",
            "/?restype=service&comp=properties",
            b"<StorageServiceProperties><Logging><RetentionPolicy><Enabled>true</Enabled>"
            b"<Days>366</Days></RetentionPolicy></Logging></StorageServiceProperties>",
            "InvalidXmlNodeValue",
        ),
        ("OPTIONS", "/", b"", "InvalidHeaderValue"),
    ],
)
def test_bad_requests_are_refused_by_the_service_s_code(
    method: str, target: str, body: bytes, code: str
) -> None:
    assert refusal_of(method, target, body).code == code


def test_a_refusal_names_the_parameter_and_the_limits() -> None:
    refusal = refusal_of("GET", "/orders/messages?numofmessages=33")

    assert dict(refusal.extra) == {
        "QueryParameterName": "numofmessages",
        "QueryParameterValue": "33",
        "MinimumAllowed": "1",
        "MaximumAllowed": "32",
    }


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"x_ms_meta_": "1"}, "EmptyMetadataKey"),
        ({"x_ms_meta_1a": "1"}, "InvalidMetadata"),
        ({"x_ms_meta_a": "1", "X_MS_META_A": "2"}, "InvalidMetadata"),
        ({"x_ms_meta_a": "x" * 8193}, "MetadataTooLarge"),
        ({"Content_MD5": "x"}, "InvalidMd5"),
        ({"Content_MD5": md5_of(b"other")}, "Md5Mismatch"),
    ],
)
def test_headers_are_checked(fields: dict[str, str], code: str) -> None:
    assert refusal_of("PUT", "/orders", **fields).code == code


def test_a_checksum_that_fits_passes() -> None:
    request = build_request(storage.PutMessage(queue="orders", body=b"x"))
    fields = (*request.headers.items, ("Content-MD5", md5_of(request.body)))

    assert sent(attrs.evolve(request, headers=Headers(fields)))


@pytest.mark.parametrize(
    ("host", "target", "account", "secondary", "path"),
    [
        ("127.0.0.1:10001", "/contoso/orders?x", "contoso", False, ("orders",)),
        ("localhost", "/contoso", "contoso", False, ()),
        ("localhost", "/contoso-secondary/", "contoso", True, ()),
        ("contoso.queue.core.windows.net", "/orders", "contoso", False, ("orders",)),
        ("contoso-secondary.queue.example:81", "/a/messages", "contoso", True, ("a", "messages")),
        ("contoso.example", "/contoso/", "contoso", False, ("contoso",)),
    ],
)
def test_accounts_are_found_in_the_host_or_the_path(
    host: str, target: str, account: str, secondary: bool, path: tuple[str, ...]
) -> None:
    request = Request(method="GET", target=target, headers=Headers.of({"Host": host}))
    found = locate(request, {"contoso"}, secure=False)

    assert (found.account, found.is_secondary, found.path) == (account, secondary, path)


def test_a_path_without_an_account_is_refused() -> None:
    for target, code in (("/nobody/orders", "ResourceNotFound"), ("/", "InvalidUri")):
        request = Request(method="GET", target=target, headers=Headers.of({"Host": "localhost"}))
        with pytest.raises(StorageRefusal) as caught:
            locate(request, {"contoso"}, secure=False)
        assert caught.value.code == code


def test_a_plus_sign_is_one() -> None:
    target = build_target("orders", "messages", "id", popreceipt="a+b/=")

    assert target == "/orders/messages/id?popreceipt=a%2Bb%2F%3D"
    request = Request(method="DELETE", target=target.replace("%2B", "+"))
    address = Address(account="contoso", endpoint=HERE, path=("orders", "messages", "id"))
    found = parse_request(request, address)
    assert isinstance(found, storage.DeleteMessage)
    assert found.pop_receipt == "a+b/="


# --- errors

ALL = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, BrokerError) and error is not BrokerError
    # Of a gateway's own connections, or of its cluster: clients are told what they extend.
    if error
    not in {
        errors.Unreachable,
        errors.NoAnswer,
        errors.HolderSilent,
        errors.NotOrderer,
        errors.TooLargeToForward,
    }
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_a_code_and_no_outcome_is_told_as_better_than_it_is(kind: Any) -> None:
    response = build_error(kind("text"), TRACE)
    code = response.headers.get("x-ms-error-code")

    assert code in CODES
    assert f"<Code>{code}</Code>".encode() in response.body
    assert isinstance(parse_error(response), BrokerError)
    if kind.outcome is Outcome.UNKNOWN:
        assert parse_error(response).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("kind", [each for each in ALL if each is not errors.SessionLockLost])
def test_an_error_of_a_pairgate_is_the_same_error_at_the_other_side(kind: Any) -> None:
    # A Pairgate's connections and credentials say nothing of those of the other one.
    local = {
        errors.Unreachable: errors.Unavailable,
        errors.NoAnswer: errors.OutcomeUnknown,
        errors.PartlyAccepted: errors.OutcomeUnknown,  # its messages are objects of that process
        errors.NoToken: errors.Unavailable,
        errors.CredentialRefused: errors.NotAuthorized,
        errors.LoginRefused: errors.NotAuthorized,
    }
    found = parse_error(build_error(kind("text"), TRACE))

    assert type(found) is local.get(kind, kind)


def test_a_busy_service_says_for_how_long() -> None:
    told = build_error(errors.Busy("text", retry_after=17.2), TRACE)
    untold = build_refusal("ServerBusy", TRACE)
    found, default = parse_error(told), parse_error(untold)

    assert isinstance(found, errors.Busy)
    assert isinstance(default, errors.Busy)
    assert (found.retry_after, found.backs_off) == (18.0, False)
    assert (default.retry_after, default.backs_off) == (1.0, True)


@pytest.mark.parametrize("code", CODES)
def test_an_error_without_a_body_is_read_from_its_header(code: str) -> None:
    whole = build_refusal(code, TRACE, extra={"MaxLimit": "1"})
    bare = attrs.evolve(whole, body=b"")

    assert type(parse_error(whole)) is type(parse_error(bare))
    assert b"<MaxLimit>1</MaxLimit>" in whole.body
    assert b"\nRequestId:id\nTime:now" in whole.body


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NotImplemented", errors.NotSupported),
        ("APINotImplemented", errors.NotSupported),
        ("", OutcomeUnknown),
    ],
)
def test_a_501_is_not_sent_only_with_the_services_code(code: str, kind: type[BrokerError]) -> None:
    headers = Headers((("x-ms-error-code", code),) if code else ())

    assert type(parse_error(Response(status=501, headers=headers))) is kind


RECEIPT = {"queue": "orders", "message_id": "m", "pop_receipt": "r"}
LOGIN = b"<html>Please log in</html>"


@pytest.mark.parametrize(
    ("operation", "response"),
    [
        (storage.DeleteMessage(**RECEIPT), Response(status=200, body=LOGIN)),
        (storage.DeleteMessage(**RECEIPT), Response(status=202)),
        (storage.UpdateMessage(**RECEIPT, visibility=1), Response(status=200, body=LOGIN)),
        (storage.ClearMessages(queue="orders"), Response(status=200, body=LOGIN)),
        (storage.CreateQueue(queue="orders"), Response(status=200, body=LOGIN)),
        (storage.PutMessage(queue="orders", body=b"x"), Response(status=204)),
        (storage.PutMessage(queue="orders", body=b"x"), Response(status=301)),
        (storage.GetMessages(queue="orders", limit=1), Response(status=204)),
    ],
)
def test_a_success_of_something_in_front_is_an_unknown_outcome(
    operation: storage.Operation, response: Response
) -> None:
    with pytest.raises(OutcomeUnknown):
        parse_response(operation, response)


@pytest.mark.parametrize("count", ["", "9" * 5000, "-1", "\u0663", "1.5"])
def test_metadata_without_a_count_is_no_empty_queue(count: str) -> None:
    headers = Headers((("x-ms-approximate-messages-count", count),))

    with pytest.raises(StorageRefusal):
        parse_response(
            storage.GetMetadata(queue="orders"), Response(status=200, headers=headers, body=LOGIN)
        )


def test_metadata_from_memory_have_no_count() -> None:
    answer = storage.QueueMetadata(metadata={"team": "blue"}, count=None)
    operation = storage.GetMetadata(queue="orders")
    response = build_response(operation, answer, Style())

    assert response.headers.get("x-ms-approximate-messages-count") is None
    with pytest.raises(StorageRefusal):
        parse_response(operation, response)
    assert parse_response(operation, response.remembered(from_memory=True)) == answer


def test_an_update_without_a_receipt_is_not_understood() -> None:
    with pytest.raises(StorageRefusal):
        parse_response(storage.UpdateMessage(**RECEIPT, visibility=1), Response(status=204))


def test_a_number_of_deliveries_that_is_none_is_not_told() -> None:
    date = "Fri, 02 Jan 2026 00:00:00 GMT"
    body = (
        "<QueueMessagesList><QueueMessage><MessageId>m</MessageId>"
        f"<InsertionTime>{date}</InsertionTime><DequeueCount>{'9' * 5000}</DequeueCount>"
        "</QueueMessage></QueueMessagesList>"
    ).encode()
    found = parse_response(
        storage.GetMessages(queue="orders", limit=1), Response(status=200, body=body)
    )

    assert isinstance(found, storage.Messages)
    assert [item.dequeues for item in found.items] == [None]


@pytest.mark.parametrize("body", [b"", b"<html>", b"maintenance"])
@pytest.mark.parametrize("status", [302, 401, 403, 404, 409, 429, 500, 503])
def test_a_refusal_without_a_code_comes_from_the_way_and_not_from_the_service(
    status: int, body: bytes
) -> None:
    headers = Headers.of({"Retry-After": "3600"})

    assert type(parse_error(Response(status=status, headers=headers, body=body))) is OutcomeUnknown


@pytest.mark.parametrize(("status", "kind"), [(400, InvalidRequest), (413, errors.MessageTooLarge)])
def test_the_form_of_a_request_may_be_refused_by_anybody(
    status: int, kind: type[BrokerError]
) -> None:
    assert type(parse_error(Response(status=status, body=b"<html>"))) is kind


def test_a_code_in_the_head_alone_is_the_service_s() -> None:
    def of(status: int, code: str) -> BrokerError:
        headers = Headers.of({"x-ms-error-code": code})
        return parse_error(Response(status=status, headers=headers))

    assert type(of(503, "ServerBusy")) is errors.Busy
    assert type(of(404, "QueueNotFound")) is EntityNotFound
    assert type(of(429, "TooManyRequests")) is errors.Busy
    assert type(of(403, "AuthenticationFailed")) is errors.NotAuthorized


@given(
    st.sampled_from([b"", b'<?xml version="1.0" encoding="utf-8"?>\n', b"\n", b"\x0c"]),
    st.text(st.characters() | st.sampled_from("<>&;\r\n]\0\x0b\ufffe")).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    | st.binary(),
)
def test_a_plain_message_is_read_as_the_parser_reads_it(head: bytes, text: bytes) -> None:
    document = head + b"<QueueMessage><MessageText>" + text + b"</MessageText></QueueMessage>"

    def read(body: bytes) -> bytes | str:
        try:
            return parse_text(body)
        except StorageRefusal as error:
            return error.code

    assert read(document) == read(document + b"<!-- not plain -->")


@pytest.mark.parametrize("code", ["InternalError", "OperationTimedOut"])
def test_an_operation_that_the_service_could_not_finish_may_have_happened(code: str) -> None:
    assert type(parse_error(build_refusal(code, TRACE))) is OutcomeUnknown
