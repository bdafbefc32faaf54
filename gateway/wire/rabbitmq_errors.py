"""What a reply code of AMQP 0-9-1 (1.2) means; RabbitMQ's own reasons are in its texts."""

from typing import Final

from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)

CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
NOT_ALLOWED: Final = 530

_CLASSES: Final[dict[int, type[BrokerError]]] = {
    311: MessageTooLarge,
    312: EntityNotFound,
    402: NotAuthorized,
    ACCESS_REFUSED: NotAuthorized,
    NOT_FOUND: EntityNotFound,
    RESOURCE_LOCKED: InvalidRequest,
    PRECONDITION_FAILED: InvalidRequest,
    NOT_ALLOWED: NotAuthorized,
    540: NotSupported,
}


def error_of(code: int, text: str) -> BrokerError:
    """
    The error of a channel or connection that the broker has closed before anything was handed over.

    What isn't the caller's fault is an outage.
    """
    said = f"{text} ({code})"
    lower = text.lower()
    if code == PRECONDITION_FAILED and "message size" in lower:
        return MessageTooLarge(said)
    if code == NOT_ALLOWED and "limit" in lower:
        return Busy(said)
    return _CLASSES.get(code, Unavailable)(said)


def error_after_hand_over(code: int, text: str, in_flight: int) -> BrokerError:
    """
    The error of messages that were on a channel when the broker closed it.

    The broker has refused one of them and doesn't say which: it took those before it, and none
    after it. So it is known of a single one only.
    """
    refusal = error_of(code, text)
    if in_flight == 1 and code in _CLASSES:
        return refusal
    return OutcomeUnknown(str(refusal))
