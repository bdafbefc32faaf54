"""
OpenTelemetry spans for the operations of this process on its namespaces (semantic conventions 1.44,
messaging). Only imported if traces are configured: without them there is no wrapper at all.

The context that a producer has put into a message is its creation context, and stays as it is. A
span links to the creation context of each of its messages, and isn't its child: a message may wait
for hours, and several messages with several contexts may share a span.
"""

from collections.abc import Iterable, Sequence
from contextvars import Token
from typing import ClassVar, Final

import attrs
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.health.operation_times import name_of_all
from gateway.domain.message import Delivery, Message
from gateway.interception import RECEIVES, Call, CallKind, Interceptor

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
    """Makes the spans of a namespace."""

    tracer: Tracer
    system: str  # `messaging.system`
    address: str  # host and port; empty: it is in this process

    def start(self, kind: SpanKind, operation: str, name: str, call: Call) -> Span:
        """Start a span of that operation type, with links to its messages' contexts."""
        messages = [message for batch in call.batches for message in batch]
        messages += [delivery.message for delivery, _ in call.settlements]
        return self.tracer.start_span(
            f"{name} {call.entity}",
            kind=kind,
            attributes=self.attributes(operation, name, call.entity, messages),
            links=links_to(messages),
            record_exception=False,
            set_status_on_exception=False,
        )

    def attributes(
        self, kind: str, name: str, entity: EntityPath | None, messages: Sequence[Message]
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


def record_failure(span: Span, error: BrokerError) -> None:
    span.set_status(StatusCode.ERROR, str(error))
    span.set_attribute("error.type", type(error).__name__)


@attrs.frozen(eq=False)
class SpanInterceptor(Interceptor):
    """
    A span for each send, each settlement, and each receive that returns messages or fails. A send
    and a settlement are the current span for as long as they last.
    """

    spans: SpanMaker
    # The spans of the calls under way, with the token of a current one.
    _open: dict[Call, tuple[Span, Token[Context] | None]] = attrs.field(factory=dict, init=False)

    kinds: ClassVar[frozenset[CallKind]] = RECEIVES | {CallKind.SEND, CallKind.SETTLE}

    def before(self, call: Call) -> None:
        if call.kind in RECEIVES:
            span = self.spans.start(SpanKind.CONSUMER, "receive", "receive", call)
            self._open[call] = span, None
            return
        if call.kind is CallKind.SEND:
            span = self.spans.start(SpanKind.CLIENT, "send", "send", call)
        else:
            name = name_of_all([settlement for _, settlement in call.settlements])
            span = self.spans.start(SpanKind.CLIENT, "settle", name, call)
        self._open[call] = span, attach(set_span_in_context(span))

    def after(self, call: Call, result: Sequence[object]) -> None:
        span = self._close(call)
        if call.kind in RECEIVES:
            if not result:
                return  # not ended, so never exported
            span.set_attribute("messaging.batch.message_count", len(result))
            for link in links_to(each.message for each in result if isinstance(each, Delivery)):
                span.add_link(link.context)
        else:
            for verdict in result:
                if isinstance(verdict, BrokerError):
                    record_failure(span, verdict)
        span.end()

    def error(self, call: Call, error: BaseException) -> None:
        span = self._close(call)
        if isinstance(error, BrokerError):
            record_failure(span, error)
        elif call.kind in RECEIVES:
            return  # a receive that is cancelled before messages come has no span
        span.end()

    def _close(self, call: Call) -> Span:
        span, token = self._open.pop(call)
        if token is not None:
            detach(token)
        return span
