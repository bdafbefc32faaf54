"""
Every reply of $management, as the SDKs' parsers demand it: an entry of another type is an error to
them, or isn't there.

Read for this: "AMQP 1.0 in Azure Service Bus: request-response-based operations" (learn);
.NET, Azure.Messaging.ServiceBus, src/Amqp; Java, azure-messaging-servicebus 7.17.19,
implementation; Go, azservicebus 1.11.0, internal; Node, @azure/service-bus 7.9.5,
core/managementClient; Python, azure-servicebus 7.15.0, _common/mgmt_handlers.
"""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from gateway.domain.errors import EntityNotFound
from gateway.domain.message import Delivery, Described, Kind, Message, Typed, Value, ValueBody
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from gateway.wire.amqp.exchange import NodeRequest, Reply, build_reply
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.management.requests import refusal_of, reply_of
from gateway.wire.amqp.management.table import EXCHANGES
from gateway.wire.amqp.message import decode_message
from gateway.wire.amqp.servicebus.deliveries import encode_delivery

TOKEN = "00112233-4455-6677-8899-aabbccddeeff"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PEEK = ops.Peek(from_sequence=0, limit=1)
PAYLOAD = encode_delivery(Delivery(message=Message(), sequence_number=1), peeked=True)
RULES = (
    Rule(name="all", filter=TrueFilter()),
    Rule(name="sql", filter=SqlFilter(expression="a = 1"), action=SqlAction(expression="SET b=1")),
    Rule(name="label", filter=CorrelationFilter(label="x", properties={"n": 1})),
)
REQUEST = NodeRequest(operation="", id="the request")

# An operation, its answer, and the entries of the reply's map, with their types.
ANSWERED: list[tuple[ops.Operation, ops.Answer, dict[str, str]]] = [
    (
        # .NET: GetValue<DateTime[]>, AmqpReceiver.RenewMessageLockInternalAsync
        # Java: instanceof Date[], ServiceBusMessageSerializer.deserializeListOfOffsetDateTime
        # Go: .([]time.Time), mgmt.go RenewLocks. Node: expirations[0]. Python: [0] / 1000.0
        ops.RenewLocks(tokens=(TOKEN,)),
        ops.LocksRenewed(until=(NOON,)),
        {"expirations": "array of timestamp"},
    ),
    (
        # .NET: GetValue<DateTime>. Java: instanceof Date. Go: .(time.Time), RenewSessionLock
        ops.RenewSession(session_id="s"),
        ops.SessionRenewed(until=NOON),
        {"expiration": "timestamp"},
    ),
    (
        # .NET: GetValue<long[]>, AmqpSender. Java: instanceof long[], deserializeListOfLong
        # Go: .([]int64), ScheduleMessages. Node: numbers or Buffers, managementClient.js:439
        ops.Schedule(messages=(Message(),)),
        ops.Scheduled(sequence_numbers=(1, 2**40)),
        {"sequence-numbers": "array of long"},
    ),
    # .NET: StatusCode must be OK; a 204 is an error, AmqpSender. Go: resp.Code != 200
    (ops.CancelScheduled(sequence_numbers=(1,)), ops.Done(), {}),
    (
        # .NET: GetListValue<AmqpMap>, a List<object>; "message" is ArraySegment<byte>
        # Java: Iterable of Map with Binary. Go: []any of map[string]any with []byte
        PEEK,
        ops.Messages(messages=(ops.Handed(payload=PAYLOAD),)),
        {"messages": "list of map", "messages.message": "binary"},
    ),
    (
        # .NET: TryGetValue<Guid>. Java: a cast to UUID. Node: the tag of a message
        ops.ReceiveDeferred(sequence_numbers=(1,)),
        ops.Messages(messages=(ops.Handed(payload=PAYLOAD, lock_token=TOKEN),)),
        {"messages": "list of map", "messages.message": "binary", "messages.lock-token": "uuid"},
    ),
    # .NET: StatusCode must be OK, AmqpReceiver.DisposeMessageRequestResponseAsync
    (
        ops.UpdateDisposition(status=ops.Disposition.COMPLETED, tokens=(TOKEN,)),
        ops.Done(),
        {},
    ),
    (
        # .NET: ArraySegment<byte>. Java: a cast to Binary. Go: .([]byte). Python: response.get
        ops.GetSessionState(session_id="s"),
        ops.SessionState(state=b"half done"),
        {"session-state": "binary"},
    ),
    # .NET: Map[...] != null: the map is there without a state, too. Python: response.get
    (ops.GetSessionState(session_id="s"), ops.SessionState(), {"session-state": "null"}),
    # .NET: StatusCode must be OK. Go: resp.Code != 200, SetSessionState
    (ops.SetSessionState(session_id="s"), ops.Done(), {}),
    (
        # learn: skip is an int, sessions-ids an array of strings. .NET 7.21: string[].
        # Go: []string or []any of string, GetMessageSessions. Python: each is decoded as UTF-8
        ops.ListSessions(),
        ops.SessionNames(names=("a", "b"), skip=2),
        {"sessions-ids": "array of string", "skip": "int"},
    ),
    # .NET: GetValue<int>, DeleteMessages
    (ops.DeleteMessages(limit=9), ops.Deleted(count=7), {"message-count": "int"}),
    (ops.AddRule(rule=RULES[0]), ops.Done(), {}),  # .NET: StatusCode must be OK, AmqpRuleManager
    (ops.RemoveRule(name="r"), ops.Done(), {}),
    (
        # .NET: GetListValue<AmqpMap>, each with an AmqpRuleDescriptionCodec
        # Java: List<Map<String, DescribedType>>. Node: Array.isArray
        ops.ListRules(),
        ops.Rules(rules=RULES),
        {"rules": "list of map", "rules.rule-description": "described"},
    ),
]


def type_of(value: Value) -> str:
    """The type's name in the specification (AMQP 1.0, part 1, 1.6)."""
    match value:
        case Typed(kind=Kind.ARRAY, value=items):
            return f"array of {type_of(items[0])}"
        case Typed(kind=kind):
            return kind.name.lower()
        case list():
            return f"list of {type_of(value[0])}"
        case Described():
            return "described"
        case None:
            return "null"
        case bool():
            return "boolean"
    names = {dict: "map", bytes: "binary", str: "string", int: "long", UUID: "uuid"}
    return names.get(type(value), "timestamp" if isinstance(value, datetime) else "other")


def body_of(operation: ops.Operation, answer: ops.Answer) -> Value:
    """The body of the reply, as it is read from its bytes."""
    message = decode_message(build_reply(reply_of(REQUEST, operation, answer)))
    assert isinstance(message.body, ValueBody)
    return message.body.value


@pytest.mark.parametrize(("operation", "answer", "entries"), ANSWERED)
def test_each_entry_of_a_reply_has_the_type_that_the_parsers_ask_for(
    operation: ops.Operation, answer: ops.Answer, entries: dict[str, str]
) -> None:
    body = body_of(operation, answer)

    found = {}
    for name, value in (body or {}).items():
        assert type(name) is str  # Go looks for strings, and finds no symbol
        found[name] = type_of(value)
        if found[name] == "list of map":
            found |= {f"{name}.{key}": type_of(each) for key, each in value[0].items()}
    assert found == entries


def test_each_operation_has_a_reply_here() -> None:
    assert {type(operation) for operation, _, _ in ANSWERED} == {each.asked for each in EXCHANGES}


@pytest.mark.parametrize(("operation", "answer", "_"), ANSWERED)
def test_each_success_has_the_status_200(
    operation: ops.Operation, answer: ops.Answer, _: dict[str, str]
) -> None:
    """.NET takes no other for a success, of what returns nothing as well."""
    message = decode_message(build_reply(reply_of(REQUEST, operation, answer)))

    # Go: .(int32) or an error, rpc.go RPC; the correlation id is the request's id, a string there.
    assert message.properties["statusCode"] == Typed(Kind.INT, 200)
    assert isinstance(message.properties["statusDescription"], str)
    assert message.correlation_id == REQUEST.id


def test_a_refusal_has_its_condition_as_a_symbol() -> None:
    """.NET: `condition is AmqpSymbol`, AmqpResponseMessage.GetResponseErrorCondition."""
    reply = build_reply(refusal_of(REQUEST, EntityNotFound("gone")))

    condition = decode_message(reply).properties["errorCondition"]
    assert isinstance(condition, Typed)
    assert condition.kind is Kind.SYMBOL


def test_a_message_in_a_reply_has_a_header() -> None:
    """Java: amqpMessage.getHeader().getDurable(), ServiceBusMessageSerializer: null without one."""
    assert PAYLOAD.startswith(b"\x00\x53\x70")


# Codes and order: learn, "Get Rules". Node compares the codes as numbers, managementClient.js;
# Java as UnsignedLong, ServiceBusConstants.
@pytest.mark.parametrize(
    ("place", "filter_code", "action_code"),
    [
        (0, 0x1370000007, 0x13700000005),
        (1, 0x1370000006, 0x13700000006),
        (2, 0x1370000009, 0x13700000005),
    ],
)
def test_a_rule_is_described_by_numbers(place: int, filter_code: int, action_code: int) -> None:
    body = body_of(ops.ListRules(), ops.Rules(rules=RULES))
    assert isinstance(body, dict)

    described = body["rules"][place]["rule-description"]
    rule_filter, action, name, *_ = described.value

    assert described.descriptor == Typed(Kind.ULONG, 0x13700000004)
    assert rule_filter.descriptor == Typed(Kind.ULONG, filter_code)
    assert action.descriptor == Typed(Kind.ULONG, action_code)
    assert name == RULES[place].name


def test_a_reply_without_an_id_is_a_reply() -> None:
    assert decode_message(build_reply(Reply(id=None, status=200))).correlation_id is None
