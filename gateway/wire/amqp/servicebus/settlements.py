"""The settlements of Service Bus, as a receiver expresses them in AMQP."""

from typing import Final

from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Settlement,
    Value,
)
from gateway.wire.amqp.events import ACCEPTED, RELEASED, AmqpError, Modified, Outcome, Rejected
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.types import encode

DEAD_LETTERED: Final = "com.microsoft:dead-letter"


def outcome_of(settlement: Settlement) -> Outcome:
    """
    The outcome that expresses a settlement, as the SDKs of Service Bus send it.

    Raises:
        InvalidRequest: reason or description of a dead letter is too long.
    """
    match settlement:
        case Complete():
            return ACCEPTED
        case Abandon(delivered=False, properties=properties) if not properties:
            return RELEASED
        case Abandon(properties=properties):
            return Modified(delivery_failed=True, annotations=properties)
        case Defer(properties=properties):
            return Modified(delivery_failed=True, undeliverable_here=True, annotations=properties)
        case DeadLetter(reason=reason, description=description, properties=properties):
            check_reason(settlement)
            why = {DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description}
            error = AmqpError(condition=DEAD_LETTERED, info={**properties, **why})
            return Rejected(error=error)


def disposition_of(
    settlement: Settlement, token: str, session_id: str | None = None
) -> ops.UpdateDisposition:
    """
    The request to $management that asks for a settlement, for a delivery without a link.

    Raises:
        InvalidRequest: reason or description of a dead letter is too long.
    """
    reason: str | None = None
    description: str | None = None
    match settlement:
        case Complete():
            status = ops.Disposition.COMPLETED
        case Abandon():
            status = ops.Disposition.ABANDONED
        case Defer():
            status = ops.Disposition.DEFERRED
        case DeadLetter():
            check_reason(settlement)
            status = ops.Disposition.SUSPENDED
            reason, description = settlement.reason, settlement.description
    properties = None if isinstance(settlement, Complete) else settlement.properties
    return ops.UpdateDisposition(
        status=status,
        tokens=(token,),
        reason=reason,
        description=description,
        properties=properties or None,
        session_id=session_id,
    )


def size_of(settlement: Settlement) -> int:
    """
    About the number of bytes that the settlement adds to a frame.

    Raises:
        InvalidRequest: a property that AMQP can't say.
    """
    if isinstance(settlement, Complete):
        return 0
    said: dict[str, Value] = dict(settlement.properties)
    if isinstance(settlement, DeadLetter):
        said |= {DEAD_LETTER_REASON: settlement.reason}
        said |= {DEAD_LETTER_DESCRIPTION: settlement.description}
    try:
        return len(encode(said)) if said else 0
    except MessageError as error:
        raise InvalidRequest(f"properties: {error}") from error


def check_reason(settlement: DeadLetter) -> None:
    """
    Raises:
        InvalidRequest: reason or description is too long.
    """
    for name, text in (("reason", settlement.reason), ("description", settlement.description)):
        if len(text) > MAX_REASON_LENGTH:
            raise InvalidRequest(
                f"dead-letter {name}: at most {MAX_REASON_LENGTH} characters expected"
            )
