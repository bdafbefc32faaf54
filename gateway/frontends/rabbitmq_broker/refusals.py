"""The errors that a client gets, in RabbitMQ's own codes and words."""

from typing import Final

from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    QuotaExceeded,
)
from gateway.wire.rabbitmq.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
)

# Reply codes of AMQP 0-9-1 (1.1) that end the connection.
FORCED: Final = 320
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541
_OF_CHANNEL: Final = frozenset(
    {311, 313, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED}
)
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


class ClientRefused(Exception):
    """A method of a client is refused, which ends its channel, or its connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{_WORDS[code]} - {text}")
        self.code = code

    @property
    def is_of_channel(self) -> bool:
        """True if the connection goes on."""
        return self.code in _OF_CHANNEL


def not_implemented(what: str) -> ClientRefused:
    """The refusal of what only RabbitMQ itself has."""
    return ClientRefused(NOT_IMPLEMENTED, what)


def refusal_of(error: BrokerError) -> ClientRefused:
    """The refusal for a namespace's error."""
    match error:
        case EntityNotFound():
            code = NOT_FOUND
        case NotAuthorized():
            code = ACCESS_REFUSED
        case NotSupported():
            code = NOT_IMPLEMENTED
        case InvalidRequest() | MessageTooLarge() | QuotaExceeded():
            code = PRECONDITION_FAILED
        case _:
            code = FORCED if error.counts_as_outage else INTERNAL_ERROR
    return ClientRefused(code, str(error))
