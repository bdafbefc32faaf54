"""The errors for reply codes of AMQP 0-9-1 (1.2); RabbitMQ's own reasons are in its texts."""

import re
from typing import Final

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    LoginRefused,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)

# Reply codes of AMQP 0-9-1.
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


# RabbitMQ also answers 404 for a classic queue whose node is down, or whose process has crashed.
_STILL_THERE: Final = (
    "is down or inaccessible",
    "due to timeout",
    "is stopped by supervisor",
    "has crashed",
    "may be stopping or being demoted",
)

_QUEUE: Final = re.compile("queue '(.+)' in vhost '", re.DOTALL)

_NOT_THE_LOGIN: Final = ("limit", "is down")


def is_of_a_queue_that_is_down(text: str) -> bool:
    """True if "not found" means that the queue exists, and is unavailable."""
    return any(reason in text.lower() for reason in _STILL_THERE)


def queue_that_is_down(code: int, text: str) -> str:
    """The queue that a 404 says exists, and is unavailable; empty: it says something else."""
    if code != NOT_FOUND or not is_of_a_queue_that_is_down(text):
        return ""
    found = _QUEUE.search(text)
    return "" if found is None else found[1]


def is_user_limit(text: str) -> bool:
    """True if a user has as many channels as it may: RabbitMQ ends the connection that asks."""
    return "maximum allowed user limit" in text.lower()


def error_of(code: int, text: str) -> BrokerError:
    """
    The error for a channel or connection that the broker closed before any message was sent.

    A reply code that isn't the caller's fault is an outage.
    """
    said = f"{text} ({code})"
    lower = text.lower()
    if code == PRECONDITION_FAILED and "message size" in lower:
        return MessageTooLarge(said)
    if code == NOT_FOUND and is_of_a_queue_that_is_down(text):
        return Unavailable(said)
    return _CLASSES.get(code, Unavailable)(said)


def refusal_of_connection(code: int, text: str) -> BrokerError:
    """
    The error for a connection that the broker closed before it was open.

    A refused login is the caller's error. Any other reason is an outage: a limit of connections, of
    the node, the vhost or the user, concerns all queues, and so does a vhost that is down.
    """
    said, lower = f"{text} ({code})", text.lower()
    of_login = code in {402, ACCESS_REFUSED, NOT_ALLOWED}
    if of_login and not any(each in lower for each in _NOT_THE_LOGIN):
        # NOT_ALLOWED comes after the login: the vhost is missing, or the user may not use it.
        return NotAuthorized(said) if code == NOT_ALLOWED else LoginRefused(said)
    return Unreachable(said)


def error_after_hand_over(code: int, text: str, in_flight: int) -> BrokerError:
    """
    The error for messages that were in flight on a channel when the broker closed it.

    The broker has refused one of them without saying which: it has accepted those before it, and
    none after it. So the outcome is known only for a single message.
    """
    refusal = error_of(code, text)
    if in_flight == 1 and code in _CLASSES:
        return refusal
    return OutcomeUnknown(str(refusal))
