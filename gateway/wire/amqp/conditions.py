"""AMQP error conditions as Service Bus uses them, and the outcome of a send with each."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.domain.errors import (
    BrokerError,
    Busy,
    BusyReason,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    GatewayError,
    InternalError,
    InvalidRequest,
    LockLost,
    LoginRefused,
    MessageError,
    MessageNotFound,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    Outcome,
    OutcomeUnknown,
    PreconditionFailed,
    QuotaExceeded,
    SessionLockLost,
    SessionNotAvailable,
    SessionRequired,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
    Unavailable,
    Unreachable,
)
from gateway.wire.rabbitmq.errors import is_of_a_queue_that_is_down
from gateway.wire.servicebus.sentences import without_sentence

_LOCKED: Final = "amqp:resource-locked"
ARGUMENT: Final = "com.microsoft:argument-error"
DETACH_FORCED: Final = "amqp:link:detach-forced"


class Reaction(enum.Enum):
    """The reaction to a condition that isn't about the request."""

    RECONNECT = "reconnect"  # idle, moved, displaced: only a failure to reconnect counts


_TABLE: Final[Mapping[str, type[BrokerError] | Reaction]] = MappingProxyType(
    {
        "com.microsoft:server-busy": Busy,
        "com.microsoft:timeout": OutcomeUnknown,
        "com.microsoft:operation-cancelled": OutcomeUnknown,
        "com.microsoft:container-close": OutcomeUnknown,  # the broker's node is moving
        "amqp:internal-error": OutcomeUnknown,
        "amqp:connection:forced": Reaction.RECONNECT,
        DETACH_FORCED: Reaction.RECONNECT,
        # The protocol was violated: a new connection may work, so only a failure to reconnect
        # counts.
        "amqp:connection:framing-error": Reaction.RECONNECT,
        "amqp:illegal-state": Reaction.RECONNECT,
        "amqp:invalid-field": Reaction.RECONNECT,
        "amqp:decode-error": Reaction.RECONNECT,
        "amqp:frame-size-too-small": Reaction.RECONNECT,
        "amqp:connection:redirect": Reaction.RECONNECT,
        "amqp:link:redirect": Reaction.RECONNECT,
        "amqp:link:transfer-limit-exceeded": Reaction.RECONNECT,
        "amqp:link:stolen": Reaction.RECONNECT,
        _LOCKED: Busy,
        "amqp:not-found": EntityNotFound,
        "amqp:resource-deleted": EntityNotFound,
        "com.microsoft:relay-not-found": NotSupported,  # for relays only
        "com.microsoft:address-already-in-use": NotSupported,
        "com.microsoft:entity-disabled": EntityDisabled,
        "com.microsoft:entity-already-exists": EntityExists,
        "amqp:resource-limit-exceeded": QuotaExceeded,
        "amqp:link:message-size-exceeded": MessageTooLarge,
        "amqp:unauthorized-access": NotAuthorized,
        "com.microsoft:auth-failed": NotAuthorized,
        "com.microsoft:publisher-revoked": NotAuthorized,
        "amqp:not-allowed": InvalidRequest,
        "amqp:not-implemented": NotSupported,
        "amqp:precondition-failed": PreconditionFailed,
        "com.microsoft:precondition-failed": PreconditionFailed,
        ARGUMENT: InvalidRequest,
        "com.microsoft:argument-out-of-range": InvalidRequest,
        "com.microsoft:message-lock-lost": LockLost,
        "com.microsoft:session-lock-lost": SessionLockLost,
        "com.microsoft:session-cannot-be-locked": SessionNotAvailable,
        "com.microsoft:message-not-found": MessageNotFound,
        "com.microsoft:store-lock-lost": OutcomeUnknown,  # the broker fails over
        "com.microsoft:partition-not-owned": OutcomeUnknown,
        "com.microsoft:no-matching-subscription": InvalidRequest,
        # Each says that the transaction has ended, and that nothing of it was done (part 4, 4.5.8).
        "amqp:transaction:unknown-id": TransactionUnknown,
        "amqp:transaction:rollback": TransactionRolledBack,
        "amqp:transaction:timeout": TransactionTimeout,
        # Never sent: azure-servicebus for Python gives this condition to failures of its own
        # connection.
        "amqp:client-error": OutcomeUnknown,
        "amqp:socket-error": OutcomeUnknown,
        "amqp:unknown-error": OutcomeUnknown,
    }
)

# The condition that a client gets, and the status of a reply with that condition. Each condition is
# parsed back to the same class, or to a class that claims less: a client that gets container-close
# (the node is moving, try again) takes the outcome as unknown.
_TELLING: Final[Mapping[type[GatewayError], tuple[str, int]]] = MappingProxyType(
    {
        GatewayError: ("amqp:internal-error", 500),
        MessageError: (ARGUMENT, 400),
        InternalError: ("amqp:internal-error", 500),
        Unavailable: ("com.microsoft:container-close", 503),
        OutcomeUnknown: ("com.microsoft:timeout", 408),
        Busy: ("com.microsoft:server-busy", 503),
        QuotaExceeded: ("amqp:resource-limit-exceeded", 403),
        NotAuthorized: ("amqp:unauthorized-access", 401),
        EntityNotFound: ("amqp:not-found", 404),
        EntityDisabled: ("com.microsoft:entity-disabled", 400),
        EntityExists: ("com.microsoft:entity-already-exists", 409),
        PreconditionFailed: ("amqp:precondition-failed", 412),
        MessageTooLarge: ("amqp:link:message-size-exceeded", 403),
        InvalidRequest: ("amqp:not-allowed", 400),
        NotSupported: ("amqp:not-implemented", 501),
        SessionNotAvailable: ("com.microsoft:session-cannot-be-locked", 409),
        LockLost: ("com.microsoft:message-lock-lost", 410),
        SessionLockLost: ("com.microsoft:session-lock-lost", 410),
        MessageNotFound: ("com.microsoft:message-not-found", 404),
        TransactionRolledBack: ("amqp:transaction:rollback", 409),
        TransactionUnknown: ("amqp:transaction:unknown-id", 404),
        TransactionTimeout: ("amqp:transaction:timeout", 408),
    }
)

# No condition says that a session is missing; only the description does, in our text and Azure's.
_SESSION_MISSING: Final = ("requires sessions", "entity requires one", "SessionId was not set")

# RabbitMQ answers not-found for a vhost that doesn't exist.
_WRONG_KEYS: Final = frozenset({"amqp:unauthorized-access", "com.microsoft:auth-failed"})
_OF_LOGIN: Final = _WRONG_KEYS | frozenset(
    {
        "com.microsoft:publisher-revoked",
        "amqp:not-found",
    }
)

_SESSION_BROKEN: Final = "amqp:session:"  # window-violation, errant-link and others

_BUSY_FOR: Final = 10.0  # seconds that Azure recommends
_BUSY_BRIEFLY: Final = 2.0  # with the detail code 50009


def meaning_of(condition: str) -> type[BrokerError] | Reaction:
    """
    The error for the condition (Service Bus error model, 8.1). An unknown condition is an unknown
    outcome.

    `Reaction.RECONNECT` asks for a new link or connection before any error.
    """
    if condition.startswith(_SESSION_BROKEN):
        return Reaction.RECONNECT
    return _TABLE.get(condition, OutcomeUnknown)


def error_from_condition(condition: str, description: str) -> BrokerError:
    """
    The error for a peer's condition, with condition and description in its text.

    If the condition asks to reconnect, requests in flight have no answer: `OutcomeUnknown`.
    """
    meaning = meaning_of(condition)
    text = f"{without_sentence(description)} ({condition})" if description else condition
    if isinstance(meaning, Reaction):
        return OutcomeUnknown(text)
    if meaning is Busy:
        seconds = _BUSY_BRIEFLY if "50009" in description else _BUSY_FOR
        held = condition == _LOCKED
        reason = BusyReason.IN_PROGRESS if held else BusyReason.THROTTLED
        return Busy(text, retry_after=seconds, reason=reason)
    if meaning is EntityNotFound and is_of_a_queue_that_is_down(description):
        return Unavailable(text)
    if meaning is InvalidRequest and any(each in description for each in _SESSION_MISSING):
        return SessionRequired(text)
    return meaning(text)


def refusal_from_condition(condition: str, description: str) -> BrokerError:
    """
    As `error_from_condition`, for a peer to which nothing was sent yet: `Unavailable` replaces an
    unknown outcome.
    """
    error = error_from_condition(condition, description)
    return Unavailable(str(error)) if error.outcome is Outcome.UNKNOWN else error


def refusal_of_connection(condition: str, description: str) -> BrokerError:
    """
    The error for a connection that the peer ended before it was open.

    A condition means another thing here than for a link: a limit, or a busy peer, concerns the
    connection and so all entities. Only the login can be the caller's fault.
    """
    text = f"{description} ({condition})" if description else condition
    if condition not in _OF_LOGIN:
        return Unreachable(text)
    return LoginRefused(text) if condition in _WRONG_KEYS else NotAuthorized(text)


def condition_of(error: GatewayError) -> str:
    """
    The condition for `error`, as Service Bus would send it.

    An error without a condition of its own gets that of its nearest base class. If the outcome is
    unknown, the link is detached with the condition. The delivery isn't rejected: a rejection would
    say that nothing was sent.
    """
    return _telling(error)[0]


def status_of(error: GatewayError) -> int:
    """The status of a reply on $cbs or $management for `error`."""
    return _telling(error)[1]


def _telling(error: GatewayError) -> tuple[str, int]:
    return next(_TELLING[cls] for cls in type(error).__mro__ if cls in _TELLING)
