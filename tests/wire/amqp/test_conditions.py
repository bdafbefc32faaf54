"""Error conditions and errors: the table of the error model of Service Bus, 8.1, row by row."""

import pytest

from gateway.domain import errors
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
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
    StorageFull,
    TransactionRolledBack,
    TransactionTimeout,
    TransactionUnknown,
    Unavailable,
)
from gateway.wire.amqp.conditions import (
    Reaction,
    condition_of,
    error_from_condition,
    meaning_of,
)

COUNTS, NOT = True, False

# Condition, what the gateway does, and whether the error counts towards a failover.
ROWS = [
    ("com.microsoft:server-busy", Busy, NOT),
    ("com.microsoft:timeout", OutcomeUnknown, COUNTS),
    ("com.microsoft:operation-cancelled", OutcomeUnknown, COUNTS),
    ("com.microsoft:container-close", OutcomeUnknown, COUNTS),
    ("amqp:internal-error", OutcomeUnknown, COUNTS),
    ("amqp:resource-locked", Busy, NOT),
    ("amqp:not-found", EntityNotFound, NOT),
    ("amqp:resource-deleted", EntityNotFound, NOT),
    ("com.microsoft:relay-not-found", NotSupported, NOT),
    ("com.microsoft:address-already-in-use", NotSupported, NOT),
    ("com.microsoft:entity-disabled", EntityDisabled, NOT),
    ("com.microsoft:entity-already-exists", EntityExists, NOT),
    ("amqp:resource-limit-exceeded", QuotaExceeded, NOT),
    ("amqp:link:message-size-exceeded", MessageTooLarge, NOT),
    ("amqp:unauthorized-access", NotAuthorized, NOT),
    ("com.microsoft:auth-failed", NotAuthorized, NOT),
    ("com.microsoft:publisher-revoked", NotAuthorized, NOT),
    ("amqp:not-allowed", InvalidRequest, NOT),
    ("amqp:not-implemented", NotSupported, NOT),
    ("amqp:precondition-failed", PreconditionFailed, NOT),
    ("com.microsoft:precondition-failed", PreconditionFailed, NOT),
    ("com.microsoft:argument-error", InvalidRequest, NOT),
    ("com.microsoft:argument-out-of-range", InvalidRequest, NOT),
    ("com.microsoft:message-lock-lost", LockLost, NOT),
    ("com.microsoft:session-lock-lost", SessionLockLost, NOT),
    ("com.microsoft:session-cannot-be-locked", SessionNotAvailable, NOT),
    ("com.microsoft:message-not-found", MessageNotFound, NOT),
    ("com.microsoft:store-lock-lost", OutcomeUnknown, COUNTS),
    ("com.microsoft:partition-not-owned", OutcomeUnknown, COUNTS),
    ("com.microsoft:no-matching-subscription", InvalidRequest, NOT),
    ("amqp:transaction:unknown-id", TransactionUnknown, NOT),
    ("amqp:transaction:rollback", TransactionRolledBack, NOT),
    ("amqp:transaction:timeout", TransactionTimeout, NOT),
    ("amqp:client-error", OutcomeUnknown, COUNTS),
    ("amqp:socket-error", OutcomeUnknown, COUNTS),
    ("amqp:unknown-error", OutcomeUnknown, COUNTS),
    ("com.example:anything-unknown", OutcomeUnknown, COUNTS),
    ("", OutcomeUnknown, COUNTS),
]

# Idle, a broken protocol, moved, displaced: a new link or connection comes before any verdict.
RECONNECTS = [
    "amqp:connection:forced",
    "amqp:link:detach-forced",
    "amqp:connection:framing-error",
    "amqp:session:window-violation",
    "amqp:session:errant-link",
    "amqp:session:handle-in-use",
    "amqp:session:unattached-handle",
    "amqp:illegal-state",
    "amqp:invalid-field",
    "amqp:decode-error",
    "amqp:frame-size-too-small",
    "amqp:connection:redirect",
    "amqp:link:redirect",
    "amqp:link:transfer-limit-exceeded",
    "amqp:link:stolen",
]


@pytest.mark.parametrize(("condition", "error_class", "counts"), ROWS)
def test_a_condition_is_this_error(
    condition: str, error_class: type[BrokerError], counts: bool
) -> None:
    error = error_from_condition(condition, "text")

    assert meaning_of(condition) is error_class
    assert type(error) is error_class
    assert error.counts_as_outage is counts


@pytest.mark.parametrize("condition", RECONNECTS)
def test_a_condition_that_asks_to_reconnect_is_no_verdict(condition: str) -> None:
    assert meaning_of(condition) is Reaction.RECONNECT


@pytest.mark.parametrize("condition", RECONNECTS)
def test_a_send_that_was_under_way_before_a_reconnect_is_unknown(condition: str) -> None:
    error = error_from_condition(condition, "idle")

    assert error.outcome is Outcome.UNKNOWN


def test_the_error_says_what_the_peer_said() -> None:
    error = error_from_condition("amqp:not-found", "no queue q1")

    assert str(error) == "no queue q1 (amqp:not-found)"


def test_the_error_without_a_description_says_the_condition() -> None:
    assert str(error_from_condition("amqp:not-found", "")) == "amqp:not-found"


@pytest.mark.parametrize(
    ("description", "pause"), [("The server is busy", 10.0), ("Error code : 50009.", 2.0)]
)
def test_a_busy_broker_says_how_long_to_wait(description: str, pause: float) -> None:
    error = error_from_condition("com.microsoft:server-busy", description)

    assert isinstance(error, Busy)
    assert error.retry_after == pause


CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, BrokerError)
]


@pytest.mark.parametrize("error_class", CLASSES)
def test_no_client_reads_more_than_is_known(error_class: type[BrokerError]) -> None:
    error = error_class("text")

    back = error_from_condition(condition_of(error), "text")

    assert isinstance(error, type(back)) or back.outcome is Outcome.UNKNOWN
    assert back.counts_as_outage or not error.counts_as_outage


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (OutcomeUnknown("text"), "com.microsoft:timeout"),
        (Unavailable("text"), "com.microsoft:container-close"),
        (StorageFull("text"), "com.microsoft:container-close"),
        (SessionRequired("text"), "amqp:not-allowed"),
        (Busy("text"), "com.microsoft:server-busy"),
        (LockLost("text"), "com.microsoft:message-lock-lost"),
    ],
)
def test_an_error_is_this_condition(error: BrokerError, condition: str) -> None:
    assert condition_of(error) == condition


def test_a_queue_of_rabbitmq_whose_node_is_down_is_an_outage_and_not_missing():
    text = "NOT_FOUND - home node 'a' of durable queue 'q' in vhost '/' is down or inaccessible"

    assert type(error_from_condition("amqp:not-found", text)) is Unavailable
    assert type(error_from_condition("amqp:not-found", "no queue 'q'")) is EntityNotFound
