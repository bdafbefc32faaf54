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

# Reply codes of AMQP 0-9-1 (1.1).
FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541
_WORDS: Final = {
    FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

_CLASSES: Final[dict[int, type[BrokerError]]] = {
    311: MessageTooLarge,
    312: EntityNotFound,
    402: NotAuthorized,
    ACCESS_REFUSED: NotAuthorized,
    NOT_FOUND: EntityNotFound,
    RESOURCE_LOCKED: InvalidRequest,
    PRECONDITION_FAILED: InvalidRequest,
    NOT_ALLOWED: NotAuthorized,
    NOT_IMPLEMENTED: NotSupported,
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


def text_of_reply(code: int, text: str) -> str:
    """The text of a reply with that code, which begins with RabbitMQ's word for it."""
    return f"{_WORDS[code]} - {text}"


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
