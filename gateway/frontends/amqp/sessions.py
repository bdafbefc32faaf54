"""Session links: the filter and the answer of their attach."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from gateway.capabilities import SessionReceiver, Sessions
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Typed, Value
from gateway.frontends.options import AmqpOptions
from gateway.offering import required
from gateway.ports import Broker
from gateway.wire.amqp.events import LinkAttached
from gateway.wire.amqp.servicebus.links import (
    FILTER,
    LOCKED_UNTIL,
    TIMEOUT,
    as_asked,
    bare,
    ticks_of,
)


def wants_session(attached: LinkAttached) -> bool:
    return attached.source is not None and FILTER in attached.source.filters


def session_wanted(attached: LinkAttached) -> str | None:
    """
    The session id that the link asks for; None for the next session with messages.

    Raises:
        InvalidRequest: the filter is neither a string nor null.
    """
    assert attached.source is not None, "the source has the session filter"
    value = bare(attached.source.filters[FILTER])
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{FILTER}: a string or null expected")
    return value


def wait_of(attached: LinkAttached, session: str | None, options: AmqpOptions) -> float:
    """The seconds for which the client of that link waits for its session."""
    if session is not None:
        return options.attach_timeout
    value = attached.properties.get(TIMEOUT)
    if isinstance(value, Typed):
        value = value.value
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return options.session_wait
    return min(value / 1000, options.longest_wait)


def open_session(
    broker: Broker, entity: EntityPath, session: str | None
) -> AbstractAsyncContextManager[SessionReceiver]:
    """
    As `Sessions.open_session`.

    Raises:
        NotSupported: this namespace doesn't support sessions.
    """
    return required(broker, Sessions).open_session(entity, session)


def filters_of(receiver: SessionReceiver, asked: Value) -> Mapping[str, Any]:
    """The source's filters in the attach's answer to a client with that session filter."""
    return {FILTER: as_asked(asked, receiver.session_id)}


def properties_of(receiver: SessionReceiver) -> Mapping[str, Any]:
    """Properties of the attach's answer that describe the session's lock."""
    return {LOCKED_UNTIL: ticks_of(receiver.locked_until)}
