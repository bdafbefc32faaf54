"""
Every error that crosses a port, and what each one says.

    GatewayError
    ├── MessageError               a message that can't be what it claims to be
    └── BrokerError                outcome     counts as an outage
        ├── Unavailable            not sent    yes   refused, DNS, time-out of a handshake or attach
        │   └── StorageFull        not sent    yes   the broker's disk is full (HTTP 507)
        ├── OutcomeUnknown         unknown     yes   time-out or connection loss after the hand-over
        ├── Busy                   not sent    no    ServerBusy: wait, then send again
        ├── QuotaExceeded          not sent    no    the entity is full
        ├── NotAuthorized          not sent    no    wrong or expired credentials, missing right
        ├── Untrusted              not sent    no    the broker's certificate is not trusted
        ├── EntityNotFound         not sent    no
        ├── EntityDisabled         not sent    no
        ├── EntityExists           not sent    no
        ├── PreconditionFailed     not sent    no    a stale ETag
        ├── MessageTooLarge        not sent    no
        ├── InvalidRequest         not sent    no    the caller's fault: the text says which field
        │   └── SessionRequired    not sent    no
        ├── NotSupported           not sent    no    this kind of namespace can't do that
        ├── SessionNotAvailable    not sent    no    another receiver holds the session
        ├── LockLost               not sent    no    the delivery's lock ran out, or is not known
        │   └── SessionLockLost    not sent    no
        ├── MessageNotFound        not sent    no
        └── StateDamaged           not sent    no    what is stored of a session isn't what was set

The rows are section 8 of the error model of Service Bus: which conditions and status codes map to
which class stands in `wire`, once for each protocol. Order matters nowhere: no class is caught
for what it means, only its two attributes are asked.
"""

import enum
from typing import ClassVar, Final


class Outcome(enum.Enum):
    """What is known of the messages when a send has failed."""

    NOT_SENT = "not-sent"  # it never arrives: safe to send again
    UNKNOWN = "unknown"  # it may have arrived, or may yet: sending again may duplicate it


class GatewayError(Exception):
    """Root of all errors that the gateway raises on purpose."""


class MessageError(GatewayError):
    """Bytes or values that don't make a message; the text names the part and the limit."""


class BrokerError(GatewayError):
    """A broker refused or failed an operation. Only subclasses of this cross a port."""

    outcome: ClassVar[Outcome] = Outcome.NOT_SENT
    counts_as_outage: ClassVar[bool] = False


class Unavailable(BrokerError):
    """The broker can't be reached, or says that it is down. Nothing was handed over."""

    counts_as_outage = True


class StorageFull(Unavailable):
    """The broker's disk is full: it takes nothing until that is mended."""


class OutcomeUnknown(BrokerError):
    """The messages were handed over and no answer came: nobody can know."""

    counts_as_outage = True
    outcome = Outcome.UNKNOWN


class Busy(BrokerError):
    """The broker asks for a pause of `retry_after` seconds: waiting is right, failing over not."""

    def __init__(self, message: str = "the broker is busy", *, retry_after: float = 10.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExceeded(BrokerError):
    """The entity holds as much as it may."""


class NotAuthorized(BrokerError):
    """The credentials are wrong, expired, or lack the right. A secondary would hide the mistake."""


class Untrusted(BrokerError):
    """The broker's certificate isn't trusted: a matter of configuration, not an outage."""


class EntityNotFound(BrokerError):
    """There is no such entity."""


class EntityDisabled(BrokerError):
    """The entity is there and switched off."""


class EntityExists(BrokerError):
    """An entity of that name is there already."""


class PreconditionFailed(BrokerError):
    """The entity was changed since the caller read it."""


class MessageTooLarge(BrokerError):
    """A message is above the limit, which the text names."""


class InvalidRequest(BrokerError):
    """The request can't be carried out as it stands; the text names the field."""


class SessionRequired(InvalidRequest):
    """The entity requires sessions and the request names none."""


class NotSupported(BrokerError):
    """This kind of namespace can't do that."""


class LockLost(BrokerError):
    """The lock ran out, or isn't known: the message will be, or was, delivered again."""


class SessionLockLost(LockLost):
    """The lock of the session ran out: all of its messages will be delivered again."""


class SessionNotAvailable(BrokerError):
    """Another receiver holds the session."""


class MessageNotFound(BrokerError):
    """There is no such message."""


class StateDamaged(BrokerError):
    """The state of a session can't be read any more. Who sets it anew has a good one again."""


# What no other queue, and no later try, would take either: it's the message's fault.
MESSAGE_FAULTS: Final = (MessageTooLarge, InvalidRequest, NotSupported)
