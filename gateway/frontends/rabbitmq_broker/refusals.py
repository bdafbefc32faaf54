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
    FORCED,
    INTERNAL_ERROR,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    text_of_reply,
)

_OF_CHANNEL: Final = frozenset(
    {311, 313, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED}
)


class ClientRefused(Exception):
    """A method of a client is refused, which ends its channel, or its connection."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text_of_reply(code, text))
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
