"""What links of sessions say and ask for, and what ends them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from gateway.capabilities import SessionReceiver, Sessions
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotSupported, SessionLockLost
from gateway.domain.lock_ends import LockEnds
from gateway.domain.message import Described, Typed
from gateway.frontends.amqp.options import AmqpOptions
from gateway.ports import Broker, WallClock
from gateway.wire.amqp.events import LinkAttached
from gateway.wire.amqp.session_links import FILTER, LOCKED_UNTIL, TIMEOUT, ticks_of


def wants_session(attached: LinkAttached) -> bool:
    return attached.source is not None and FILTER in attached.source.filters


def session_wanted(attached: LinkAttached) -> str | None:
    """
    Which session the link asks for; None: the next one that has messages.

    Raises:
        InvalidRequest: the filter is no string.
    """
    assert attached.source is not None, "the filter stands there"
    value = attached.source.filters[FILTER]
    if isinstance(value, Described):
        value = value.value
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{FILTER}: a string or null expected")
    return value


def wait_of(attached: LinkAttached, session: str | None, options: AmqpOptions) -> float:
    """How many seconds the client of that link waits for its session."""
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
        NotSupported: this namespace has no sessions.
    """
    if not isinstance(broker, Sessions):
        raise NotSupported("this namespace has no sessions")
    return broker.open_session(entity, session)


def properties_of(receiver: SessionReceiver) -> Mapping[str, Any]:
    """What the answer to the attach says of the session's lock."""
    return {LOCKED_UNTIL: ticks_of(receiver.locked_until)}


async def wait_until_lost(receiver: SessionReceiver, wall_clock: WallClock) -> None:
    """
    Return never. Of a lock that was renewed it may tell late, by no more than a usual lock.

    Raises:
        SessionLockLost: the lock has run out and nobody has renewed it.
    """
    while True:
        until = receiver.locked_until
        ends = LockEnds.of(until, wall_clock(), trio.current_time())
        await trio.sleep_until(ends.latest)
        if receiver.locked_until == until:
            raise SessionLockLost(f"the lock of session {receiver.session_id!r} ran out")
