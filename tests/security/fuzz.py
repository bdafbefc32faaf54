"""
Requests of every operation of every front end, with values at the ends of their types and beyond,
to a pair of stores in this process.

Usage: python -m tests.fuzz operations SECONDS
"""

import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import attrs
import trio
import trio.testing
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import BrokerError, InternalError, MessageError
from gateway.domain.events.gateway import Event
from gateway.domain.events.stores import RequestFailed
from gateway.domain.message import Complete, Kind, Message, Typed, ValueBody
from gateway.domain.storage_queue import StorageAccount
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlAction, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.frontends.amqp.frontend import AmqpFrontend
from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend
from gateway.frontends.storage_queue.auth import Accounts
from gateway.frontends.storage_queue.frontend import StorageQueueFrontend
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.offering import capabilities_of, required
from gateway.ports import Broker
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.local.hooks import LocalHooks
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.exchange import parse_reply
from gateway.wire.amqp.message import encode_message
from gateway.wire.http.date import format_http_date
from gateway.wire.http.messages import Headers, Request
from gateway.wire.storage_queue.signing import signed
from tests.brokers.pairs import pair_of
from tests.frontends.amqp.sdk import Sdk
from tests.frontends.rest_client import POLICIES, wall_clock
from tests.frontends.rest_client import Client as RestClient
from tests.harness.patience import PATIENCE
from tests.security.values import (
    DATES,
    HALVES,
    IN_64_BITS,
    LOCAL_DATES,
    SPANS,
    amqp_values,
    element,
    json_object,
    json_texts,
    numbers,
    texts,
    values,
    xml_texts,
)

ORDERS, SESSIONS, DUPS, TOPIC = map(EntityPath, ("orders", "sessions", "dups", "news"))
ENTITIES: Final = ["orders", "sessions", "dups", "news", "news/Subscriptions/all", "nothing"]
ACCOUNT, KEY = "contoso", b"a key for tests only"
# An operation that this kind of namespace lacks is no failure.
FINE: Final = {501}
INTERNAL: Final = {"amqp:internal-error", "com.microsoft:container-close"}


def real_date() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class Harness:
    """All front ends on one pair, and clients of them."""

    broker: Any  # the pair
    primary: EmbeddedBroker
    rest: RestClient
    storage: StorageQueueFrontend
    frontend: AmqpFrontend
    nursery: trio.Nursery
    events: list[Event]
    _sdk: Sdk | None = None

    async def sdk(self) -> Sdk:
        """A client over AMQP; another one where a request has cost the last its connection."""
        if self._sdk is None or any(isinstance(e, amqp.ConnectionClosed) for e in self._sdk.told):
            ours, theirs = trio.testing.memory_stream_pair()
            self.nursery.start_soon(self._serve, theirs)
            self._sdk = Sdk.on(ours)
            self.nursery.start_soon(self._sdk.run)
            await self._sdk.open()
            await self._sdk.put_token()
        return self._sdk

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            await self.frontend.serve_connection(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    def check(self) -> None:
        """Nothing has failed."""
        assert not self.primary.failed.is_set()
        found = [event.traceback for event in self.events if isinstance(event, RequestFailed)]
        assert not found, found[0]

    async def witness(self) -> None:
        """Somebody else's message comes and goes."""
        await self.broker.send(EntityPath("witness"), [Message(body=b"still here")])
        async with self.broker.open_receiver(EntityPath("witness")) as receiver:
            (taken,) = await receiver.receive(1)
            await receiver.settle(taken, Complete())
        assert taken.message.body == b"still here"


@attrs.define
class Observer:
    events: list[Event]

    def report(self, event: Event) -> None:
        self.events.append(event)


@asynccontextmanager
async def open_harness(folder: Path) -> AsyncIterator[Harness]:
    events: list[Event] = []

    def store(name: str) -> EmbeddedBroker:
        rng = random.Random(name)
        hooks = LocalHooks(observer=Observer(events))
        return EmbeddedBroker(folder / name, real_date, rng, EmbeddedOptions(), hooks)

    async with (
        store("east.db") as east,
        store("west.db") as west,
        trio.open_nursery() as nursery,
        pair_of(east, west, real_date) as pair,
    ):
        await east.create_queue(ORDERS, QueueProperties())
        await east.create_queue(EntityPath("witness"), QueueProperties())
        await east.create_queue(SESSIONS, QueueProperties(requires_session=True))
        await east.create_queue(DUPS, QueueProperties(requires_duplicate_detection=True))
        await east.create_topic(TOPIC, TopicProperties())
        await east.create_subscription(TOPIC, "all", SubscriptionProperties())
        broker = pair.broker
        leases = Leases(broker, wall_clock)
        await nursery.start(leases.run)
        authorizer = Authorizer(POLICIES, wall_clock=wall_clock)
        rest = ServiceBusRestFrontend(
            broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
        )
        accounts = Accounts([StorageAccount(name=ACCOUNT, keys=(KEY,))], wall_clock=real_date)
        storage = StorageQueueFrontend(
            operations=StorageOperations(
                broker=broker,
                visibility=LocalVisibility(east),
                sends=True,
                wall_clock=real_date,
                marks=accounts.marks,
            ),
            accounts=accounts,
            wall_clock=real_date,
        )
        frontend = AmqpFrontend(
            broker=broker, leases=leases, authorizer=authorizer, wall_clock=wall_clock
        )
        harness = Harness(broker, east, RestClient(rest, east), storage, frontend, nursery, events)
        yield harness
        nursery.cancel_scope.cancel()


Call = Callable[[Harness], Awaitable[None]]


@attrs.frozen
class Http:
    """A request to one of the two front ends over HTTP."""

    front: str
    method: str
    target: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""

    async def __call__(self, harness: Harness) -> None:
        headers = Headers.of([(name, value) for name, value in self.headers if value.isprintable()])
        request = Request(method=self.method, target=self.target, headers=headers, body=self.body)
        if self.front == "rest":
            response = await harness.rest.send(request)
        else:
            fields = [
                ("Host", "127.0.0.1:10001"),
                ("x-ms-date", format_http_date(real_date())),
                ("x-ms-version", "2026-10-06"),
                ("Content-Length", str(len(self.body))),
                *headers.items,
            ]
            request = attrs.evolve(
                request, headers=Headers.of(fields), target=f"/{ACCOUNT}{self.target}"
            )
            response = await harness.storage.handle(
                signed(request, account=ACCOUNT, key=KEY), "127.0.0.1"
            )
        assert response.status < 500 or response.status in FINE, response


@attrs.frozen
class Manage:
    """A request to `$management`."""

    entity: str
    operation: str
    body: Any
    properties: Any

    async def __call__(self, harness: Harness) -> None:
        sdk = await harness.sdk()
        request = Message(
            properties={**self.properties, "operation": self.operation}, body=ValueBody(self.body)
        )
        try:
            encode_message(request)
        except MessageError:
            return
        address = f"{self.entity}/$management"
        replies = sdk.attach(we_send=False, address=address, target=amqp.Terminus(address="here"))
        sdk.engine.grant(replies, 1)
        requests = sdk.attach(we_send=True, address=address)
        asked = attrs.evolve(request, message_id="question", reply_to="here")
        sdk.engine.send(requests, b"1", encode_message(asked))
        reply = await answer(sdk, replies, requests)
        sdk.engine.detach(replies)
        sdk.engine.detach(requests)
        if isinstance(reply, amqp.TransferReceived):
            status = status_of(reply.payload)
            assert status < 500 or status in FINE, reply.payload


@attrs.frozen
class Transfer:
    """A message, or bytes that may be one."""

    entity: str
    payload: bytes
    format: int

    async def __call__(self, harness: Harness) -> None:
        sdk = await harness.sdk()
        link = sdk.attach(we_send=True, address=self.entity)
        sdk.engine.send(link, b"1", self.payload, message_format=self.format)
        await answer(sdk, link)
        sdk.engine.detach(link)


@attrs.frozen
class Attach:
    """A link with a filter, whose first message is settled in some way."""

    entity: str
    filters: Any
    state: Any

    async def __call__(self, harness: Harness) -> None:
        sdk = await harness.sdk()
        try:
            source = amqp.Terminus(address=self.entity, filters=self.filters)
            link = sdk.attach(we_send=False, address=self.entity, source=source)
        except MessageError:
            return
        sdk.engine.grant(link, 1)
        with trio.move_on_after(0.02):
            found = await answer(sdk, link)
            if isinstance(found, amqp.TransferReceived):
                sdk.engine.update(found.delivery, self.state)
                await answer(sdk, link)
        sdk.engine.detach(link)


@attrs.frozen
class Direct:
    """A call of the namespace itself, as code of our own could do it."""

    name: str
    arguments: Any
    named: Any = attrs.field(factory=dict)

    async def __call__(self, harness: Harness) -> None:
        for broker in (harness.primary, harness.broker):
            try:
                await self._method_of(broker)(*self.arguments, **self.named)
            except InternalError:
                raise
            except (BrokerError, MessageError):
                await trio.lowlevel.checkpoint()

    def _method_of(self, broker: Broker) -> Any:
        if hasattr(broker, self.name):
            return getattr(broker, self.name)
        capability = next(each for each in capabilities_of(Broker) if hasattr(each, self.name))
        return getattr(required(broker, capability), self.name)


@attrs.frozen
class Deferred:
    """Messages that were deferred, requested by their numbers."""

    numbers: Sequence[int]

    async def __call__(self, harness: Harness) -> None:
        try:
            async with harness.broker.open_receiver(ORDERS) as receiver:
                await receiver.receive_deferred(self.numbers)
        except InternalError:
            raise
        except BrokerError:
            await trio.lowlevel.checkpoint()


def status_of(payload: bytes) -> int:
    return parse_reply(payload).status


async def answer(sdk: Sdk, *links: amqp.LinkId) -> amqp.Event | None:
    """
    Return the event that ends a request: an answer on one of these links, the end of one of them,
    or the end of the connection.

    Raises:
        AssertionError: the error is an internal one.
    """
    ends = (amqp.TransferReceived, amqp.LinkDetached, amqp.DispositionReceived)
    while True:
        for event in sdk.told:
            if isinstance(event, amqp.ConnectionClosed):
                assert event.error is None or event.error.condition not in INTERNAL, event
                return event
            if isinstance(event, ends) and event.link in links:
                if isinstance(event, amqp.DispositionReceived) and len(links) > 1:
                    error = getattr(event.state, "error", None)
                    if error is None:
                        continue  # the request was taken
                error = getattr(getattr(event, "state", None), "error", None)
                error = error or getattr(event, "error", None)
                assert error is None or error.condition not in INTERNAL, event
                sdk.told.remove(event)
                return event
        await sdk._more.park()


# --- requests

entities: Final = st.sampled_from(ENTITIES)


def http(front: str, methods: str, targets: Any, headers: Any, bodies: Any) -> Any:
    return st.builds(
        Http, st.just(front), st.sampled_from(methods.split()), targets, headers, bodies
    )


def headers_of(names: Sequence[str], contents: Any) -> Any:
    return st.lists(
        st.tuples(st.sampled_from(names), contents), max_size=3, unique_by=lambda e: e[0]
    )


def queries(names: Sequence[str]) -> Any:
    pairs = st.lists(st.tuples(st.sampled_from(names), texts | numbers.map(str)), max_size=3)
    return pairs.map(lambda found: "&".join(f"{n}={quote(v, errors='replace')}" for n, v in found))


PROPERTIES: Final = [
    *("MessageId", "CorrelationId", "SessionId", "Label", "To", "ReplyTo", "PartitionKey"),
    *("TimeToLive", "ScheduledEnqueueTimeUtc", "ForcePersistence", "DeliveryCount"),
]
broker_properties: Final = (
    st.dictionaries(st.sampled_from(PROPERTIES), json_texts, max_size=3).map(json_object)
    | json_texts
)
bodies: Final = st.binary(max_size=20) | texts.map(lambda text: text.encode(errors="replace"))
LOCK: Final = "00000000-0000-4000-8000-000000000000"
rest_sends: Final = http(
    "rest",
    "POST",
    entities.map(lambda name: f"/{name}/messages"),
    headers_of(["BrokerProperties"], broker_properties)
    | headers_of(["Content-Type", "Priority", "X-Some", "Customer"], texts | json_texts),
    bodies,
)
batch_items: Final = st.dictionaries(
    st.sampled_from(["Body", "BrokerProperties", "UserProperties"]), json_texts, max_size=3
).map(json_object)
rest_batches: Final = http(
    "rest",
    "POST",
    entities.map(lambda name: f"/{name}/messages"),
    st.just([("Content-Type", "application/vnd.microsoft.servicebus.json")]),
    (st.lists(batch_items, max_size=3).map(lambda items: f"[{','.join(items)}]") | json_texts).map(
        lambda text: text.encode(errors="replace")
    ),
)
rest_others: Final = http(
    "rest",
    "GET POST PUT DELETE PATCH",
    st.builds(
        lambda name, tail, query: f"/{name}{tail}?timeout=0&{query}",
        entities,
        st.sampled_from(
            [
                "/messages/head",
                f"/messages/1/{LOCK}",
                f"/messages/{2**63}/{LOCK}",
                f"/messages/x/{LOCK}",
                "/$DeadLetterQueue/messages/head",
                "/peek",
                "",
            ]
        ),
        queries(
            ["from", "limit", "count", "timeout", "sequencenumber", "api-version", "sessionid"]
        ),
    ),
    st.just([]),
    bodies,
)
KINDS: Final = {
    "QueueDescription": "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession"
    " DefaultMessageTimeToLive DeadLetteringOnMessageExpiration MaxDeliveryCount ForwardTo"
    " DuplicateDetectionHistoryTimeWindow EnableBatchedOperations Status UserMetadata"
    " AutoDeleteOnIdle ForwardDeadLetteredMessagesTo MaxMessageSizeInKilobytes",
    "TopicDescription": "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection"
    " AutoDeleteOnIdle Status UserMetadata SupportOrdering DuplicateDetectionHistoryTimeWindow",
    "SubscriptionDescription": "LockDuration RequiresSession DefaultMessageTimeToLive ForwardTo"
    " MaxDeliveryCount Status UserMetadata AutoDeleteOnIdle",
}
PATHS: Final = {
    "QueueDescription": "/made-{}",
    "TopicDescription": "/topic-{}",
    "SubscriptionDescription": "/news/Subscriptions/made-{}",
    "RuleDescription": "/news/Subscriptions/all/Rules/made-{}",
}
SB: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"


def entry(kind: str, content: str) -> bytes:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SB}" xmlns:i="{XSI}">{content}</{kind}></content></entry>'
    ).encode(errors="surrogatepass")


def described(kind: str) -> Any:
    fields = st.dictionaries(st.sampled_from(KINDS[kind].split()), xml_texts, max_size=3)
    return fields.map(
        lambda found: entry(kind, "".join(element(name, text) for name, text in found.items()))
    )


XML_TYPES: Final = [
    "string",
    "int",
    "long",
    "boolean",
    "double",
    "dateTime",
    "duration",
    "decimal",
    "base64Binary",
]
xml_values: Final = st.lists(
    st.tuples(xml_texts, st.sampled_from(XML_TYPES), xml_texts), max_size=3
).map(
    lambda found: "".join(
        f"<KeyValueOfstringanyType><Key>{key}</Key><Value i:type='d6p1:{kind}'"
        f" xmlns:d6p1='http://www.w3.org/2001/XMLSchema'>{text}</Value></KeyValueOfstringanyType>"
        for key, kind, text in found
    )
)
expressions: Final = xml_texts | st.sampled_from(
    ["a = @p", "a &gt; 5 AND NOT b", "sys.MessageId LIKE 'a%'", "EXISTS(a)", "a IN (1, 'x')"]
)
rule_filters: Final = st.one_of(
    st.builds(
        (
            "<Filter i:type='CorrelationFilter'><Label>{}</Label><Properties>{}</Properties>"
            "</Filter>"
        ).format,
        xml_texts,
        xml_values,
    ),
    st.builds(
        "<Filter i:type='SqlFilter'><SqlExpression>{}</SqlExpression><Parameters>{}</Parameters>"
        "</Filter>".format,
        expressions,
        xml_values,
    ),
)
rule_actions: Final = st.just("") | st.builds(
    "<Action i:type='SqlRuleAction'><SqlExpression>{}</SqlExpression></Action>".format, expressions
)
atom_bodies: Final = st.one_of(
    *(st.tuples(st.just(PATHS[kind]), described(kind)) for kind in KINDS),
    st.tuples(
        st.just(PATHS["RuleDescription"]),
        st.builds(lambda f, a: entry("RuleDescription", f + a), rule_filters, rule_actions),
    ),
)
atom_changes: Final = st.builds(
    lambda pair, number, headers: Http(
        "rest", "PUT", f"{pair[0].format(number)}?api-version=2021-05", headers, pair[1]
    ),
    atom_bodies,
    st.integers(0, 3),
    headers_of(["If-Match", "Content-Type"], st.sampled_from(["*", '"0"', '"9e99"', "x", ""])),
)
atom_others: Final = http(
    "rest",
    "GET DELETE",
    st.builds(
        lambda path, number, query: f"{path.format(number)}?{query}",
        st.sampled_from(
            [
                *PATHS.values(),
                "/$Resources/queues",
                "/$Resources/topics",
                "/$namespaceinfo",
                "/news/Subscriptions",
                "/news/Subscriptions/all/Rules",
            ]
        ),
        st.integers(0, 3),
        queries(["$skip", "$top", "api-version", "enrich"]),
    ),
    st.just([]),
    st.just(b""),
)
storage_bodies: Final = st.builds(
    lambda text: f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>".encode(
        errors="surrogatepass"
    ),
    xml_texts,
) | st.builds(
    lambda one, two: (
        f"<SignedIdentifiers><SignedIdentifier><Id>{one}</Id><AccessPolicy><Expiry>{two}</Expiry>"
        "</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    ).encode(errors="surrogatepass"),
    xml_texts,
    xml_texts,
)
storage_requests: Final = http(
    "storage",
    "GET PUT POST DELETE HEAD OPTIONS",
    st.builds(
        lambda path, query: f"{path}?{query}",
        st.sampled_from(
            [
                "/orders/messages",
                "/made/messages",
                f"/orders/messages/{LOCK}",
                "/made",
                "/orders",
                "/",
            ]
        ),
        queries(
            [
                *("visibilitytimeout", "messagettl", "numofmessages", "popreceipt", "peekonly"),
                *("comp", "restype", "prefix", "marker", "maxresults", "include", "timeout"),
            ]
        ),
    ),
    headers_of(["x-ms-meta-a", "x-ms-meta-pairgate_lock", "Origin"], texts | numbers.map(str)),
    storage_bodies | bodies,
)
OPERATIONS: Final = [
    f"com.microsoft:{name}"
    for name in (
        *("renew-lock", "renew-session-lock", "schedule-message", "cancel-scheduled-message"),
        *("peek-message", "receive-by-sequence-number", "update-disposition"),
        *("get-session-state", "set-session-state", "get-message-sessions"),
        "batch-delete-messages",
        *("add-rule", "remove-rule", "enumerate-rules", "nothing"),
    )
]
FIELDS: Final = [
    *("lock-tokens", "session-id", "messages", "sequence-numbers", "from-sequence-number"),
    *("message-count", "receiver-settle-mode", "disposition-status", "deadletter-reason"),
    *("deadletter-description", "properties-to-modify", "session-state", "skip", "top"),
    *(
        "last-updated-time",
        "enqueued-time-utc",
        "rule-name",
        "rule-description",
        "message-id",
        "message",
    ),
]
criteria: Final = st.dictionaries(
    st.sampled_from(["correlation-id", "message-id", "label", "properties", "session-id"]),
    amqp_values | st.dictionaries(texts, amqp_values, max_size=2),
    max_size=3,
)
rules: Final = st.fixed_dictionaries(
    {
        "rule-name": st.sampled_from(["one", "two"]) | texts,
        "rule-description": st.fixed_dictionaries(
            {},
            optional={
                "sql-filter": st.fixed_dictionaries({"expression": texts}),
                "correlation-filter": criteria,
                "sql-rule-action": st.fixed_dictionaries({"expression": texts}),
            },
        ),
    }
)
messages: Final = st.builds(
    lambda fields, properties, annotations, body: Message(
        **fields, properties=properties, annotations=annotations, body=body
    ),
    st.dictionaries(
        st.sampled_from(["message_id", "subject", "session_id", "partition_key", "to"]),
        texts,
        max_size=3,
    ),
    st.dictionaries(texts, amqp_values, max_size=3),
    st.dictionaries(
        st.sampled_from(["x-opt-scheduled-enqueue-time", "x-opt-partition-key", "x-opt-via", "x"]),
        amqp_values,
        max_size=2,
    ),
    amqp_values.map(ValueBody) | bodies,
)


def payload_of(message: Message) -> bytes:
    try:
        return encode_message(message)
    except MessageError:
        return b""


payloads: Final = messages.map(payload_of) | st.binary(max_size=40)
schedules: Final = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"message": payloads}), max_size=2)}
)
management: Final = st.builds(
    Manage,
    st.sampled_from(ENTITIES[:-1]),
    st.sampled_from(OPERATIONS),
    st.dictionaries(st.sampled_from(FIELDS), amqp_values, max_size=4) | amqp_values,
    st.dictionaries(
        st.sampled_from(["com.microsoft:server-timeout", "associated-link-name", "x"]),
        st.sampled_from([0, -1, 2**63 - 1, "x", 1.5, None]),
        max_size=1,
    ),
) | st.one_of(
    st.builds(
        Manage,
        st.just("news/Subscriptions/all"),
        st.just("com.microsoft:add-rule"),
        rules,
        st.just({}),
    ),
    st.builds(Manage, entities, st.just("com.microsoft:schedule-message"), schedules, st.just({})),
)
longs: Final = st.sampled_from(IN_64_BITS)
counts: Final = st.sampled_from([edge for edge in IN_64_BITS if -(2**31) <= edge < 2**31]).map(
    lambda number: Typed(Kind.INT, number)
)
numbers_asked: Final = st.lists(longs, min_size=1, max_size=3).map(
    lambda found: Typed(Kind.ARRAY, tuple(found))
)
tokens_asked: Final = st.just(Typed(Kind.ARRAY, (UUID(LOCK), UUID(int=2**128 - 1))))
modes: Final = st.sampled_from([Typed(Kind.UINT, 0), Typed(Kind.UINT, 1)])
# Requests that have the right form.
FORMS: Final[dict[str, dict[str, Any]]] = {
    "peek-message": {"from-sequence-number": longs, "message-count": counts},
    "receive-by-sequence-number": {
        "sequence-numbers": numbers_asked,
        "receiver-settle-mode": modes,
    },
    "cancel-scheduled-message": {"sequence-numbers": numbers_asked},
    "renew-lock": {"lock-tokens": tokens_asked},
    "update-disposition": {
        "disposition-status": st.sampled_from(["completed", "abandoned", "defered", "suspended"]),
        "lock-tokens": tokens_asked,
        "deadletter-reason": texts,
        "properties-to-modify": st.dictionaries(texts, amqp_values, max_size=2),
    },
    "set-session-state": {"session-id": texts, "session-state": st.binary(max_size=9)},
    "get-session-state": {"session-id": texts},
    "get-message-sessions": {
        "last-updated-time": st.sampled_from(DATES),
        "skip": counts,
        "top": counts,
    },
    "enumerate-rules": {"skip": counts, "top": counts},
    "remove-rule": {"rule-name": texts},
}
formed: Final = st.one_of(
    *(
        st.builds(
            Manage,
            entities,
            st.just(f"com.microsoft:{name}"),
            st.fixed_dictionaries(fields),
            st.just({}),
        )
        for name, fields in FORMS.items()
    )
)
states: Final = st.sampled_from([amqp.ACCEPTED, amqp.RELEASED]) | st.builds(
    lambda annotations: amqp.Modified(
        delivery_failed=True, undeliverable_here=True, annotations=annotations
    ),
    st.dictionaries(texts.filter(str.isascii), amqp_values, max_size=2),
)
transfers: Final = st.builds(
    Transfer, entities, payloads, st.sampled_from([0, 0, 0, 0x80013700, 1, 2**32 - 1])
)
attaches: Final = st.builds(
    Attach,
    entities,
    st.dictionaries(
        st.sampled_from(["com.microsoft:session-filter", "apache.org:selector-filter:string"]),
        amqp_values,
        max_size=1,
    ),
    states,
)
filters: Final = st.builds(
    CorrelationFilter,
    label=st.none() | texts,
    properties=st.dictionaries(texts, values, max_size=3),
) | st.builds(SqlFilter, expression=texts, parameters=st.dictionaries(texts, values, max_size=2))
actions: Final = st.none() | st.builds(
    SqlAction, expression=texts, parameters=st.dictionaries(texts, values, max_size=2)
)
rule_values: Final = st.builds(
    Rule, name=st.sampled_from(["one", "two"]), filter=filters, action=actions
)
sequences: Final = st.lists(numbers, max_size=3)
spans: Final = st.sampled_from(SPANS)
queue_properties: Final = st.builds(
    QueueProperties,
    lock_duration=spans | st.just(timedelta(seconds=30)),
    max_delivery_count=numbers.filter(lambda number: number > 0),
    default_time_to_live=st.none() | spans,
    max_size_in_megabytes=numbers,
    duplicate_detection_window=spans | st.just(timedelta(seconds=30)),
    auto_delete_on_idle=st.none() | spans,
    forward_to=st.none() | texts,
    user_metadata=st.none() | texts | st.sampled_from(HALVES),
    max_message_size=st.none() | numbers,
)
direct: Final = st.one_of(
    st.builds(
        Direct, st.just("create_rule"), st.tuples(st.just(TOPIC), st.just("all"), rule_values)
    ),
    st.builds(
        Direct, st.just("update_rule"), st.tuples(st.just(TOPIC), st.just("all"), rule_values)
    ),
    st.builds(Direct, st.just("cancel_scheduled"), st.tuples(st.just(ORDERS), sequences)),
    st.builds(
        Direct,
        st.just("delete_messages"),
        st.tuples(st.sampled_from([ORDERS, SESSIONS, ORDERS.dead_letter]), numbers),
        st.fixed_dictionaries(
            {
                "before": st.none() | st.sampled_from([*DATES, *LOCAL_DATES]),
                "session_id": st.none() | texts,
            }
        ),
    ),
    st.builds(
        Direct,
        st.just("send"),
        st.tuples(
            st.sampled_from([ORDERS, SESSIONS, DUPS, TOPIC]),
            st.lists(
                st.builds(
                    Message,
                    message_id=values,
                    session_id=st.none() | texts | st.sampled_from(["\ud800"]),
                    time_to_live=st.none() | st.sampled_from(SPANS),
                    scheduled=st.none() | st.sampled_from([*DATES, *LOCAL_DATES]),
                    properties=st.dictionaries(texts, values, max_size=2),
                ),
                max_size=2,
            ),
        ),
    ),
    st.builds(Deferred, sequences),
    st.builds(
        Direct,
        st.just("peek"),
        st.just((ORDERS,)),
        st.fixed_dictionaries({"from_sequence": numbers, "limit": numbers}),
    ),
    st.builds(
        Direct,
        st.sampled_from(["list_queues", "list_topics"]),
        st.tuples(texts),
        st.fixed_dictionaries({"skip": numbers, "top": numbers}),
    ),
    st.builds(
        Direct,
        st.just("list_rules"),
        st.just((TOPIC, "all")),
        st.fixed_dictionaries({"skip": numbers, "top": numbers}),
    ),
    st.builds(
        Direct,
        st.just("list_sessions"),
        st.just((SESSIONS,)),
        st.fixed_dictionaries(
            {
                "updated_since": st.none() | st.sampled_from([*DATES, *LOCAL_DATES]),
                "skip": numbers,
                "top": numbers,
            }
        ),
    ),
    st.builds(
        Direct,
        st.sampled_from(["create_queue", "update_queue"]),
        st.tuples(st.sampled_from([ORDERS, EntityPath("made")]), queue_properties),
    ),
)


calls: Final = st.one_of(
    *(rest_sends, rest_batches, rest_others, atom_changes, atom_others, storage_requests),
    *(management, formed, transfers, attaches, direct),
)


async def fuzz(asked: Sequence[Call]) -> None:
    """
    Ask one after the other.

    Raises:
        AssertionError: an answer says that something of ours has failed, or something has.
        TooSlowError: no answer comes.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with open_harness(Path(folder)) as harness:
            for call in asked:
                with trio.fail_after(PATIENCE):
                    await call(harness)
                harness.check()
            with trio.fail_after(PATIENCE):
                await harness.witness()
            harness.check()


conversations: Final = st.lists(calls, min_size=20, max_size=40)
SETTINGS: Final = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def run(asked: Sequence[Call]) -> None:
    trio.run(fuzz, asked)
