"""The requests of clients about exchanges and bindings, as the routing table has them."""

from typing import Any, Final, TypeVar

from pamqp import base, commands

from gateway.frontends.rabbitmq_broker.refusals import ClientRefused
from gateway.frontends.rabbitmq_broker.routing import HEADERS, Binding, RoutingExchange, binding
from gateway.wire.rabbitmq.errors import PRECONDITION_FAILED

_X_MATCHES: Final = frozenset({"all", "any", "all-with-x", "any-with-x"})
F = TypeVar("F", bound=base.Frame)


def exchange_of(request: commands.Exchange.Declare) -> RoutingExchange:
    """The exchange that a client declares."""
    return RoutingExchange(
        request.exchange,
        request.exchange_type,
        durable=bool(request.durable),
        auto_delete=bool(request.auto_delete),
        internal=bool(request.internal),
        arguments=request.arguments or {},
    )


def binding_of(request: Any) -> Binding:
    """The binding that a client asks to bind or to unbind."""
    if isinstance(request, commands.Queue.Bind | commands.Queue.Unbind):
        ends = request.exchange, request.queue
        return binding(*ends, request.routing_key, request.arguments, to_queue=True)
    ends = request.source, request.destination
    return binding(*ends, request.routing_key, request.arguments, to_queue=False)


def unbind_of(old: Binding) -> base.Frame:
    """The request that unbinds it."""
    if old.to_queue:
        return with_fields(
            commands.Queue.Unbind(),
            exchange=old.source,
            queue=old.destination,
            routing_key=old.key,
            arguments=dict(old.arguments),
        )
    return with_fields(
        commands.Exchange.Unbind(),
        source=old.source,
        destination=old.destination,
        routing_key=old.key,
        arguments=dict(old.arguments),
    )


def with_fields(request: F, **fields: object) -> F:
    """The request with these fields, which pamqp checks only where it makes a method."""
    for name, each in fields.items():
        setattr(request, name, each)
    return request


def check_arguments(new: Binding, exchange: RoutingExchange) -> None:
    """Raises: ClientRefused: the exchange can't have a binding with such arguments."""
    matches = new.arguments.get("x-match", "all")
    if exchange.kind == HEADERS and matches not in _X_MATCHES:
        raise ClientRefused(PRECONDITION_FAILED, f"Invalid x-match field value {matches!r:.100}")
