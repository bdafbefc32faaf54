"""
OpenTelemetry spans for the operations of this process on its namespaces (semantic conventions 1.44,
messaging). Only imported if traces are configured: without them there is no wrapper at all.

The context that a producer has put into a message is its creation context, and stays as it is. A
span links to the creation context of each of its messages, and isn't its child: a message may wait
for hours, and several messages with several contexts may share a span.
"""

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import ClassVar, Final, TypeVar

import attrs
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.capabilities import (
    Batches,
    Polls,
    ReceivesAvailable,
    SendEach,
    SettlesMany,
    Transacts,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.health.operation_times import name_of, name_of_all
from gateway.domain.message import (
    Delivery,
    Message,
    ReceiveMode,
    Settlement,
)
from gateway.forwarding_broker import SendWrapper
from gateway.offering import Wrapper, required
from gateway.ports import Broker, Receiver
from gateway.telemetry.receivers import UNSEEN

T = TypeVar("T")

MOST_LINKS: Final = 128  # of one span, as the SDK keeps by default
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NOWHERE: Final = Context()


def creation_context(message: Message) -> SpanContext | None:
    """The valid context that the message's producer has put into it, or None."""
    properties = message.properties
    parent = properties.get("traceparent") or properties.get("Diagnostic-Id")
    if not isinstance(parent, str):
        return None
    carrier = {"traceparent": parent}
    if isinstance(state := properties.get("tracestate"), str):
        carrier["tracestate"] = state
    found = get_current_span(_PROPAGATOR.extract(carrier, _NOWHERE)).get_span_context()
    return found if found.is_valid else None


@attrs.frozen(kw_only=True)
class SpanMaker:
    """Makes the spans of one namespace."""

    tracer: Tracer
    system: str  # `messaging.system`
    address: str  # host and port; empty: it is in this process

    @contextmanager
    def during(
        self, kind: str, name: str, entity: EntityPath, messages: Sequence[Message]
    ) -> Iterator[Span]:
        """
        A span of that operation type for the duration of the context, whose error is the span's,
        too.
        """
        span = self.tracer.start_as_current_span(
            f"{name} {entity}",
            kind=SpanKind.CLIENT,
            attributes=self.attributes(kind, name, entity, messages),
            links=links_to(messages),
            record_exception=False,
            set_status_on_exception=False,
        )
        with span as current:
            try:
                yield current
            except BrokerError as error:
                note_failure(current, error)
                raise

    def attributes(
        self, kind: str, name: str, entity: EntityPath, messages: Sequence[Message]
    ) -> dict[str, str | int]:
        found: dict[str, str | int] = {
            "messaging.system": self.system,
            "messaging.operation.type": kind,
            "messaging.operation.name": name,
            "messaging.destination.name": str(entity),
        }
        if self.address:
            host, _, port = self.address.partition(",")[0].rpartition(":")
            found["server.address"] = host.strip("[]") or self.address
            if host and port.isdecimal():
                found["server.port"] = int(port)
        if len(messages) == 1 and isinstance(messages[0].message_id, str):
            found["messaging.message.id"] = messages[0].message_id
        elif len(messages) > 1:
            found["messaging.batch.message_count"] = len(messages)
        return found


def links_to(messages: Iterable[Message]) -> list[Link]:
    contexts = (creation_context(message) for message in messages)
    return [Link(context) for context in contexts if context is not None][:MOST_LINKS]


def note_failure(span: Span, error: BrokerError) -> None:
    span.set_status(StatusCode.ERROR, str(error))
    span.set_attribute("error.type", type(error).__name__)


@attrs.frozen(eq=False)
class Traced(SendWrapper):
    """A broker over `inner` with a span for each send, receive and settlement."""

    _inner: Broker
    spans: SpanMaker

    forwards: ClassVar[frozenset[type]] = SendWrapper.forwards | {Transacts}

    @property
    def inner(self) -> Broker:
        return self._inner

    async def wrap_sends(
        self, send: SendEach[T], entity: EntityPath, batches: Batches
    ) -> Sequence[T | BrokerError]:
        messages = [message for batch in batches for message in batch]
        with self.spans.during("send", "send", entity, messages) as span:
            verdicts = await send(entity, batches)
            for verdict in verdicts:
                if isinstance(verdict, BrokerError):
                    note_failure(span, verdict)
        return verdicts

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[Receiver]:
        """As `Broker.open_receiver`."""
        async with self._inner.open_receiver(entity, mode) as inner:
            yield TracedReceiver(inner, entity, self.spans)


@attrs.frozen(eq=False)
class TracedReceiver(Wrapper):
    """A `Receiver` with a span for each receive of messages and each settlement."""

    _inner: Receiver
    entity: EntityPath
    spans: SpanMaker

    forwards: ClassVar[frozenset[type]] = UNSEEN

    @property
    def inner(self) -> Receiver:
        return self._inner

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """As `Receiver.receive`. A receive that is cancelled before messages come has no span."""
        return await self._received(self._inner.receive(limit))

    async def receive_available(self, limit: int) -> Sequence[Delivery]:
        """As `ReceivesAvailable.receive_available`."""
        available = required(self._inner, ReceivesAvailable)
        return await self._received(available.receive_available(limit))

    async def poll(self, limit: int, lock: timedelta | None = None) -> Sequence[Delivery]:
        """As `Polls.poll`. A poll that finds no messages has no span."""
        return await self._received(required(self._inner, Polls).poll(limit, lock))

    async def _received(self, call: Awaitable[Sequence[Delivery]]) -> Sequence[Delivery]:
        span = self.spans.tracer.start_span(
            f"receive {self.entity}",
            kind=SpanKind.CONSUMER,
            attributes=self.spans.attributes("receive", "receive", self.entity, ()),
        )
        try:
            deliveries = await call
        except BrokerError as error:
            note_failure(span, error)
            span.end()
            raise
        if not deliveries:
            return deliveries
        span.set_attribute("messaging.batch.message_count", len(deliveries))
        for link in links_to(delivery.message for delivery in deliveries):
            span.add_link(link.context)
        span.end()
        return deliveries

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        name = name_of(settlement)
        with self.spans.during("settle", name, self.entity, [delivery.message]):
            await self._inner.settle(delivery, settlement)

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """As `SettlesMany.settle_many`."""
        name = name_of_all([settlement for _, settlement in settlements])
        messages = [delivery.message for delivery, _ in settlements]
        with self.spans.during("settle", name, self.entity, messages) as span:
            verdicts = await required(self._inner, SettlesMany).settle_many(settlements)
            for verdict in verdicts:
                if verdict is not None:
                    note_failure(span, verdict)
        return verdicts

    async def renew(self, delivery: Delivery) -> datetime:
        return await self._inner.renew(delivery)
