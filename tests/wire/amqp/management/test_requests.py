"""Requests to $management and their replies, both ways, and as the SDKs write them."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import (
    Busy,
    EntityNotFound,
    GatewayError,
    InvalidRequest,
    LockLost,
    MessageError,
    MessageNotFound,
    NotSupported,
    OutcomeUnknown,
    SessionLockLost,
    SessionNotAvailable,
    Unavailable,
)
from gateway.domain.message import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Kind,
    Message,
    ReceiveMode,
    Settlement,
    Typed,
    symbol,
)
from gateway.wire.amqp.exchange import (
    NodeRequest,
    Reply,
    build_reply,
    build_request,
    parse_reply,
    parse_request,
)
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.operations import Disposition
from gateway.wire.amqp.management.requests import (
    answer_of,
    link_of,
    operation_of,
    refusal_of,
    reply_of,
    request_of,
    timeout_of,
)
from gateway.wire.amqp.management.table import EXCHANGES
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.servicebus.sentences import sentence_of
from tests.strategies import amqp_values, longs, messages, moments
from tests.wire.amqp.recorded import RECORDED

TOKEN = "00112233-4455-6677-8899-aabbccddeeff"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

_texts = st.text(max_size=10)
_counts = st.integers(0, 2**31 - 1)
_tokens = st.lists(st.uuids().map(str), min_size=1, max_size=3).map(tuple)
_longs = longs.filter(lambda number: number > -(2**63))
_numbers = st.lists(_longs, min_size=1, max_size=3).map(tuple)
_sessions = st.none() | _texts

OPERATIONS = st.one_of(
    st.builds(ops.RenewLocks, tokens=_tokens),
    st.builds(ops.RenewSession, session_id=_texts),
    st.builds(ops.Schedule, messages=st.lists(messages(), min_size=1, max_size=2).map(tuple)),
    st.builds(ops.CancelScheduled, sequence_numbers=_numbers),
    st.builds(
        ops.Peek,
        from_sequence=_longs,
        limit=_counts,
        session_id=_sessions,
        omit_body=st.none() | st.booleans(),
    ),
    st.builds(
        ops.ReceiveDeferred,
        sequence_numbers=_numbers,
        mode=st.sampled_from(ReceiveMode),
        session_id=_sessions,
    ),
    st.builds(
        ops.UpdateDisposition,
        status=st.sampled_from(Disposition),
        tokens=_tokens,
        reason=_sessions,
        description=_sessions,
        properties=st.none() | st.dictionaries(_texts, amqp_values(), max_size=2),
        session_id=_sessions,
    ),
    st.builds(ops.GetSessionState, session_id=_texts),
    st.builds(ops.SetSessionState, session_id=_texts, state=st.none() | st.binary(max_size=9)),
    st.builds(ops.ListSessions, last_updated=moments(), skip=_counts, top=_counts),
    st.builds(
        ops.DeleteMessages,
        limit=_counts,
        before=st.none() | moments(),
        session_id=st.none() | _texts,
    ),
    st.builds(ops.RemoveRule, name=_texts),
    st.builds(ops.ListRules, skip=_counts, top=_counts),
)
_PAGE = ops.Peek(from_sequence=0, limit=1)
EXCHANGED = st.one_of(
    st.tuples(
        st.just(ops.RenewLocks(tokens=())),
        st.builds(ops.LocksRenewed, until=st.lists(moments(), max_size=3).map(tuple)),
    ),
    st.tuples(
        st.just(ops.RenewSession(session_id="")), st.builds(ops.SessionRenewed, until=moments())
    ),
    st.tuples(
        st.just(ops.Schedule(messages=())), st.builds(ops.Scheduled, sequence_numbers=_numbers)
    ),
    st.tuples(
        st.just(_PAGE),
        st.lists(
            st.builds(
                ops.Handed,
                payload=st.binary(max_size=9),
                lock_token=st.none() | st.uuids().map(str),
            ),
            max_size=3,
        ).map(lambda handed: ops.Messages(messages=tuple(handed))),
    ),
    st.tuples(
        st.just(ops.GetSessionState(session_id="")),
        st.builds(ops.SessionState, state=st.none() | st.binary(max_size=9)),
    ),
    st.tuples(
        st.just(ops.ListSessions()),
        st.builds(ops.SessionNames, names=st.lists(_texts, min_size=1).map(tuple), skip=_counts),
    ),
    st.tuples(
        st.just(ops.DeleteMessages(limit=1)), st.builds(ops.Deleted, count=st.integers(1, 4000))
    ),
    st.tuples(st.just(ops.RemoveRule(name="r")), st.just(ops.Done())),
)
IDS = st.uuids() | _texts | st.integers(0, 2**64 - 1).map(lambda n: Typed(Kind.ULONG, n))


@given(OPERATIONS, IDS)
def test_a_request_comes_back(operation: ops.Operation, request_id: Any) -> None:
    request = request_of(operation, request_id=request_id, reply_to="here", timeout=5, link="l1")

    back = parse_request(build_request(request))

    assert back == request
    assert operation_of(back) == operation
    assert (timeout_of(back), link_of(back)) == (5.0, "l1")


@given(EXCHANGED, IDS)
def test_a_reply_comes_back(exchanged: tuple[ops.Operation, ops.Answer], request_id: Any) -> None:
    operation, answer = exchanged
    request = request_of(operation, request_id=request_id, reply_to="here")

    back = parse_reply(build_reply(reply_of(request, operation, answer)))

    assert back.id == request_id
    assert type(back.id) is type(request_id)
    assert answer_of(operation, back) == answer


SCHEDULED = Message(message_id="m1", body=b"hi", session_id="s", partition_key="s", scheduled=NOON)
SENT_BY_PYTHON = [
    ("renew-lock", ops.RenewLocks(tokens=(TOKEN,))),
    ("renew-session-lock", ops.RenewSession(session_id="s")),
    ("schedule-message", ops.Schedule(messages=(SCHEDULED,))),
    ("cancel-scheduled-message", ops.CancelScheduled(sequence_numbers=(7,))),
    ("peek-message", ops.Peek(from_sequence=0, limit=3)),
    ("receive-by-sequence-number", ops.ReceiveDeferred(sequence_numbers=(7,), session_id="s")),
    (
        "update-disposition",
        ops.UpdateDisposition(
            status=Disposition.SUSPENDED, tokens=(TOKEN,), reason="r", description="d"
        ),
    ),
    ("get-session-state", ops.GetSessionState(session_id="s")),
    ("set-session-state", ops.SetSessionState(session_id="s", state=b"x")),
    ("set-session-state to nothing", ops.SetSessionState(session_id="s")),
    (
        "get-message-sessions",
        ops.ListSessions(last_updated=datetime.max.replace(tzinfo=UTC), skip=0, top=100),
    ),
]


@pytest.mark.parametrize(("name", "operation"), SENT_BY_PYTHON)
def test_requests_of_azure_servicebus_for_python_are_parsed(
    name: str, operation: ops.Operation
) -> None:
    request = parse_request(RECORDED[name])

    assert operation_of(request) == operation
    assert request.id == UUID(TOKEN)
    assert request.reply_to == "q1/$management"
    assert timeout_of(request) == 5.0
    assert link_of(request) == (None if name == "get-message-sessions" else "l1")


@pytest.mark.parametrize("milliseconds", [None, -1, 0, True, "5", 1.5])
def test_a_time_out_that_is_none_is_not_there(milliseconds: Any) -> None:
    properties = {"com.microsoft:server-timeout": milliseconds}

    assert timeout_of(NodeRequest(operation="", properties=properties)) is None


# azservicebus 1.11, internal/rpc.go, RPC: "server-timeout", a ulong, for all but schedules.
@pytest.mark.parametrize("name", ["com.microsoft:server-timeout", "server-timeout"])
def test_a_time_out_has_two_names(name: str) -> None:
    properties = {name: Typed(Kind.ULONG, 59_000)}

    assert timeout_of(NodeRequest(operation="", properties=properties)) == 59.0


def test_arrays_are_real_arrays() -> None:
    operation = ops.RenewLocks(tokens=(TOKEN,))
    request = request_of(operation, request_id="1", reply_to="here")

    reply = reply_of(request, operation, ops.LocksRenewed(until=(NOON,)))

    assert request.body == {"lock-tokens": Typed(Kind.ARRAY, (UUID(TOKEN),))}
    assert reply.body == {"expirations": Typed(Kind.ARRAY, (NOON,))}


def test_lists_and_symbols_do_as_well() -> None:
    body = {symbol("lock-tokens"): [UUID(TOKEN)], "disposition-status": symbol("Completed")}

    operation = operation_of(NodeRequest(operation="com.microsoft:update-disposition", body=body))

    assert operation == ops.UpdateDisposition(status=Disposition.COMPLETED, tokens=(TOKEN,))


def test_the_sentinel_of_the_sdks_means_no_date() -> None:
    operation = operation_of(parse_request(RECORDED["get-message-sessions"]))

    assert isinstance(operation, ops.ListSessions)
    assert operation.updated_since is None


def test_a_date_of_sessions_is_a_date() -> None:
    assert ops.ListSessions(last_updated=NOON).updated_since == NOON


@pytest.mark.parametrize(
    ("status", "settlement"),
    [
        (Disposition.COMPLETED, Complete()),
        (Disposition.ABANDONED, Abandon(properties={"n": 1})),
        (Disposition.DEFERRED, Defer(properties={"n": 1})),
        (Disposition.SUSPENDED, DeadLetter(reason="r", properties={"n": 1})),
    ],
)
def test_a_disposition_settles(status: Disposition, settlement: Settlement) -> None:
    update = ops.UpdateDisposition(status=status, tokens=(TOKEN,), reason="r", properties={"n": 1})

    assert update.settlement == settlement


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (_PAGE, ops.Messages(messages=())),
        (ops.ListSessions(), ops.SessionNames(names=())),
        (ops.DeleteMessages(limit=1), ops.Deleted(count=0)),
        # MiscRequestResponseOperationHandler.getRulesAsync of azure-servicebus 1.2.18 for Java.
        (ops.ListRules(), ops.Rules(rules=())),
    ],
)
def test_nothing_is_204(operation: ops.Operation, answer: ops.Answer) -> None:
    reply = reply_of(NodeRequest(operation="", id="1"), operation, answer)

    assert (reply.status, reply.body) == (204, None)
    assert answer_of(operation, reply) == answer


# learn, "AMQP 1.0 in Azure Service Bus: request-response-based operations", the type of each value.
# .NET reads the sessions as string[] or object[] (AmqpReceiver.ParseGetMessageSessionsResponse).
@pytest.mark.parametrize(
    ("operation", "answer", "name", "is_array"),
    [
        (ops.RenewLocks(tokens=(TOKEN,)), ops.LocksRenewed(until=(NOON,)), "expirations", True),
        (
            ops.Schedule(messages=(Message(),)),
            ops.Scheduled(sequence_numbers=(1, 2)),
            "sequence-numbers",
            True,
        ),
        (ops.ListSessions(), ops.SessionNames(names=("a", "b")), "sessions-ids", True),
        (_PAGE, ops.Messages(messages=(ops.Handed(payload=b""),)), "messages", False),
    ],
)
def test_several_values_are_an_array_and_several_maps_a_list(
    operation: ops.Operation, answer: ops.Answer, name: str, is_array: bool
) -> None:
    body = reply_of(NodeRequest(operation="", id="1"), operation, answer).body

    assert isinstance(body, dict)
    assert (isinstance(body[name], Typed) and body[name].kind is Kind.ARRAY) is is_array
    assert isinstance(body[name], list) is not is_array


def test_no_state_is_said() -> None:
    state = ops.GetSessionState(session_id="s")

    assert reply_of(NodeRequest(operation=""), state, ops.SessionState()).body == {
        "session-state": None
    }


WRONG: list[tuple[str, Any, str]] = [
    ("renew-lock", None, "lock-tokens: an array, each a uuid, expected"),
    ("renew-lock", {"lock-tokens": UUID(TOKEN)}, "lock-tokens: an array"),
    ("renew-lock", {"lock-tokens": ["x"]}, "lock-tokens: an array"),
    ("renew-lock", "text", "body: a map expected"),
    ("peek-message", {"message-count": 1}, "from-sequence-number: a long expected"),
    (
        "peek-message",
        {"from-sequence-number": True, "message-count": 1},
        "from-sequence-number: a long expected",
    ),
    (
        "peek-message",
        {"from-sequence-number": 1, "message-count": -1},
        "message-count: a number from 0 on expected",
    ),
    (
        "peek-message",
        {"from-sequence-number": Typed(Kind.ULONG, 2**63), "message-count": 1},
        "from-sequence-number: a long expected",
    ),
    (
        "peek-message",
        {"from-sequence-number": 1, "message-count": 2**31},
        "message-count: a number from 0 on expected",
    ),
    ("cancel-scheduled-message", {"sequence-numbers": [-(2**63)]}, "sequence-numbers: an array"),
    ("schedule-message", {"messages": []}, "messages: a list of messages expected"),
    ("schedule-message", {"messages": [1]}, "messages: body: a map expected"),
    ("schedule-message", {"messages": [{}]}, "messages: message: a binary expected"),
    ("schedule-message", {"messages": [{"message": b"x"}]}, "messages: byte 0: 0x78 starts no"),
    (
        "receive-by-sequence-number",
        {"sequence-numbers": [1], "receiver-settle-mode": 2},
        "receiver-settle-mode: 0 or 1 expected",
    ),
    (
        "update-disposition",
        {"lock-tokens": [UUID(TOKEN)], "disposition-status": "done"},
        "disposition-status: completed, abandoned, defered or suspended expected",
    ),
    (
        "update-disposition",
        {
            "lock-tokens": [UUID(TOKEN)],
            "disposition-status": "abandoned",
            "properties-to-modify": {1: 2},
        },
        "properties-to-modify: a map of strings expected",
    ),
    ("set-session-state", {"session-id": "s", "session-state": "x"}, "session-state: a binary"),
    (
        "get-message-sessions",
        {"last-updated-time": 1, "skip": 0, "top": 1},
        "last-updated-time: a timestamp expected",
    ),
]


@pytest.mark.parametrize(("operation", "body", "text"), WRONG)
def test_a_wrong_field_is_named(operation: str, body: Any, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        operation_of(NodeRequest(operation=f"com.microsoft:{operation}", body=body))


NAMES = [exchange.name for exchange in EXCHANGES]
_FIELDS = st.sampled_from(
    [
        "lock-tokens",
        "session-id",
        "messages",
        "message",
        "sequence-numbers",
        "from-sequence-number",
        "message-count",
        "receiver-settle-mode",
        "disposition-status",
        "properties-to-modify",
        "session-state",
        "last-updated-time",
        "skip",
        "top",
        "rule-name",
        "rule-description",
        "sql-filter",
        "correlation-filter",
        "expression",
        "expirations",
        "expiration",
        "sessions-ids",
        "rules",
    ]
)
_MAPS = st.recursive(
    st.dictionaries(_FIELDS, amqp_values(), max_size=3),
    lambda inner: st.dictionaries(_FIELDS, inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=4,
)
ANYTHING = amqp_values() | _MAPS


@given(st.sampled_from(NAMES), ANYTHING)
def test_each_request_is_an_operation_or_refused(name: str, body: Any) -> None:
    request = NodeRequest(operation=f"com.microsoft:{name}", body=body)

    try:
        operation_of(request)
    except MessageError as error:
        build_reply(refusal_of(request, error))


@given(OPERATIONS, ANYTHING)
def test_each_answer_is_built_or_refused(operation: Any, body: Any) -> None:
    with suppress(MessageError):
        answer_of(operation, Reply(id="1", status=200, body=body))


@pytest.mark.parametrize("operation", ["READ", "com.microsoft:", "renew-lock"])
def test_an_operation_that_is_not_known_is_not_implemented(operation: str) -> None:
    with pytest.raises(NotSupported) as caught:
        operation_of(NodeRequest(operation=operation))

    reply = refusal_of(NodeRequest(operation=operation), caught.value)
    assert (reply.status, reply.condition) == (501, "amqp:not-implemented")


def test_a_request_names_its_operation() -> None:
    with pytest.raises(MessageError, match="operation: a string expected"):
        parse_request(encode_message(Message(message_id="1")))


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (MessageError("skip: x"), 400, "com.microsoft:argument-error"),
        (InvalidRequest("x"), 400, "amqp:not-allowed"),
        (EntityNotFound("x"), 404, "amqp:not-found"),
        (MessageNotFound("x"), 404, "com.microsoft:message-not-found"),
        (LockLost("x"), 410, "com.microsoft:message-lock-lost"),
        (SessionLockLost("x"), 410, "com.microsoft:session-lock-lost"),
        (SessionNotAvailable("x"), 409, "com.microsoft:session-cannot-be-locked"),
        (OutcomeUnknown("x"), 408, "com.microsoft:timeout"),
        (Unavailable("x"), 503, "com.microsoft:container-close"),
        (Busy("x"), 503, "com.microsoft:server-busy"),
    ],
)
def test_a_refusal_says_why(error: GatewayError, status: int, condition: str) -> None:
    reply = parse_reply(build_reply(refusal_of(NodeRequest(operation="", id=UUID(TOKEN)), error)))

    assert reply == Reply(
        id=UUID(TOKEN), status=status, description=sentence_of(error), condition=condition
    )


def test_a_refusal_is_the_error_again() -> None:
    refusal = refusal_of(NodeRequest(operation=""), SessionLockLost("session s"))

    with pytest.raises(SessionLockLost, match="session s"):
        answer_of(ops.RenewSession(session_id="s"), refusal)


def test_a_refusal_without_a_condition_says_nothing_of_the_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="status 500"):
        answer_of(_PAGE, Reply(id=None, status=500))


def test_a_reply_names_its_parts() -> None:
    reply = build_reply(Reply(id="1", status=404, description="d", condition="amqp:not-found"))

    assert decode_message(reply).properties == {
        "statusCode": Typed(Kind.INT, 404),
        "statusDescription": "d",
        "errorCondition": symbol("amqp:not-found"),
    }


def test_a_reply_says_its_status() -> None:
    with pytest.raises(MessageError, match="a status code expected"):
        parse_reply(encode_message(Message(correlation_id="1")))
