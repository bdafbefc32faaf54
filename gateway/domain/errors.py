"""
Every error that crosses a port: its outcome, and whether it counts as an outage.

    GatewayError
    ├── MessageError               a message that can't be what it claims to be
    └── BrokerError                outcome     counts as an outage
        ├── Unavailable            not sent    yes   time-out of an attach; a 503 that says so
        │   ├── Unreachable        not sent    yes   refused, DNS, time-out of a handshake
        │   ├── NoToken            not sent    yes   the identity provider gives no access token
        │   ├── NotOrderer         not sent    yes   a forwarded send reached a wrong gateway
        │   └── StorageFull        not sent    yes   the broker's disk is full (HTTP 507)
        ├── OutcomeUnknown         unknown     yes   connection loss after the hand-over
        │   ├── NoAnswer           unknown     yes   time-out after the hand-over
        │   ├── PartlyAccepted     unknown     yes   some messages of a batch, without the others
        │   └── HolderSilent       unknown     yes   no answer of the gateway that holds a delivery
        ├── Busy                   not sent    no    ServerBusy: wait, then send again
        ├── QuotaExceeded          not sent    no    the entity is full
        ├── NotAuthorized          not sent    no    wrong or expired credentials, missing right
        │   ├── LoginRefused       not sent    no    the broker refuses user, key or password
        │   └── CredentialRefused  not sent    no    the identity provider refuses the credential
        ├── Untrusted              not sent    no    the broker's certificate is not trusted
        ├── EntityNotFound         not sent    no
        ├── EntityDisabled         not sent    no
        ├── EntityExists           not sent    no
        ├── PreconditionFailed     not sent    no    a stale ETag
        ├── MessageTooLarge        not sent    no
        │   └── TooLargeToForward  not sent    no    for the channel to the orderer
        ├── InvalidRequest         not sent    no    the caller's fault: the text says which field
        │   └── SessionRequired    not sent    no
        ├── InternalError          not sent    no    a bug of ours: nothing has changed
        ├── NotSupported           not sent    no    this kind of namespace lacks the operation
        ├── SessionNotAvailable    not sent    no    another receiver holds the session
        ├── LockLost               not sent    no    the delivery's lock expired, or is not known
        │   └── SessionLockLost    not sent    no
        ├── MessageNotFound        not sent    no
        ├── TransactionRolledBack  not sent    no    nothing of the transaction was done
        │   ├── TransactionUnknown not sent    no    it was never begun here, or has ended
        │   └── TransactionTimeout not sent    no    it lasted too long
        └── StateDamaged           not sent    no    the stored state of a session is corrupt

The rows follow section 8 of Service Bus's error model. `wire` maps the conditions and status codes
of each protocol to these classes, and back: `wire/servicebus/errors.py` (HTTP statuses),
`wire/storage_queue/errors.py`, `wire/amqp/conditions.py`, `wire/rabbitmq/errors.py`. `Busy` is only
what a namespace itself says of an entity over a connection that it accepted: a refused connection
is `Unreachable`, and a 503 of a server on the way is `OutcomeUnknown`. `pairing/primary.py` decides
what follows.
"""

import enum
import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

_NO_THREAD: Final = "can't start new thread"  # the text of CPython, by which alone it is known


class Outcome(enum.Enum):
    """The fate of the messages after a failed send."""

    NOT_SENT = "not-sent"  # the messages never arrive: safe to send again
    UNKNOWN = "unknown"  # they may arrive: sending again may duplicate them


class GatewayError(Exception):
    """Root of all errors that the gateway raises on purpose."""


class MessageError(GatewayError):
    """Bytes or values that aren't a valid message; the text names the part and the limit."""


class BrokerError(GatewayError):
    """
    A broker refused or failed an operation. Only subclasses of this cross a port.

    `since` is set where the failure is remembered: the operation wasn't tried, as an earlier one
    failed that began then, by the monotonic clock. It shows nothing about later moments.

    `is_final` is set where another try is for the client to make: a front end answers at once.
    """

    outcome: ClassVar[Outcome] = Outcome.NOT_SENT
    counts_as_outage: ClassVar[bool] = False
    since: float | None = None
    is_final: bool = False


class Unavailable(BrokerError):
    """The broker can't be reached, or reports that it is down. No message was handed over."""

    counts_as_outage = True


class Unreachable(Unavailable):
    """No connection to the broker could be established, which concerns all of its entities."""


class NoToken(Unavailable):
    """
    No access token: the identity provider can't be reached or fails, and no earlier token is good.

    The namespace itself wasn't asked. `retry_after` seconds should pass before the next request.
    """

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotOrderer(Unavailable):
    """The gateway that a send was forwarded to isn't the orderer of its key."""


class StorageFull(Unavailable):
    """The broker's disk is full: it accepts no messages until space is freed."""


class OutcomeUnknown(BrokerError):
    """The messages were handed over and no answer came, so that the outcome can't be known."""

    counts_as_outage = True
    outcome = Outcome.UNKNOWN


class NoAnswer(OutcomeUnknown):
    """No answer came in time. Several entities without one mean that the broker is unreachable."""


class PartlyAccepted(OutcomeUnknown):
    """
    The namespace has accepted some messages of a batch, and not all: unknown for the batch, and
    known for each message. `accepted` are those messages, as objects: who has sent others instead
    finds none of its own among them. `why` is the error of the others; the worst if several.
    """

    def __init__(
        self, message: str, accepted: Sequence[object] = (), why: BrokerError | None = None
    ) -> None:
        super().__init__(message)
        self.accepted = accepted
        self.why = why or OutcomeUnknown(message)

    def has_accepted(self, message: object) -> bool:
        return any(each is message for each in self.accepted)


class HolderSilent(OutcomeUnknown):
    """
    The gateway that holds the delivery was asked to settle it, and didn't say whether it has. To
    ask again tells nothing: after a restart it knows nothing of the delivery, whatever has
    happened.
    """

    is_final = True


class BusyReason(enum.Enum):
    """The kinds of reasons for which a namespace asks for a pause."""

    THROTTLED = "throttled"  # too many requests, or too much load
    IN_PROGRESS = "in-progress"  # another operation holds the entity, or it is being deleted
    UNCONFIRMED = "unconfirmed"  # too many messages wait for the queue's confirm


class Busy(BrokerError):
    """
    The broker asks for a pause of `retry_after` seconds. Not a reason to fail over.

    `backs_off`: the broker doesn't say how long, and wants its callers to wait longer each time.
    """

    def __init__(
        self,
        message: str = "the broker is busy",
        *,
        retry_after: float = 10.0,
        backs_off: bool = False,
        reason: BusyReason = BusyReason.THROTTLED,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.backs_off = backs_off
        self.reason = reason


class QuotaExceeded(BrokerError):
    """The entity is full."""


class NotAuthorized(BrokerError):
    """The credentials are wrong, expired, or lack the right. A failover would hide the mistake."""


class LoginRefused(NotAuthorized):
    """The broker refuses user and password, or key name and key, whatever the user's rights."""


class CredentialRefused(NotAuthorized):
    """The identity provider gives no access token for the credential. The broker wasn't asked."""


class Untrusted(BrokerError):
    """The broker's certificate isn't trusted. This is an error of configuration, not an outage."""


class EntityNotFound(BrokerError):
    """The entity doesn't exist."""


class EntityDisabled(BrokerError):
    """The entity exists and is disabled."""


class EntityExists(BrokerError):
    """An entity of that name exists already."""


class PreconditionFailed(BrokerError):
    """The entity was changed since the caller read it."""


class MessageTooLarge(BrokerError):
    """A message exceeds the limit, which the text names."""


class TooLargeToForward(MessageTooLarge):
    """The messages are too large for the channel to the orderer, which has not been asked."""


class InvalidRequest(BrokerError):
    """The request is invalid; the text names the field."""


class SessionRequired(InvalidRequest):
    """The entity requires sessions and the request names none."""


class InternalError(BrokerError):
    """A bug ended the operation. It has changed nothing, and the log has the traceback."""


class NotSupported(BrokerError):
    """This kind of namespace doesn't have the operation."""


class LockLost(BrokerError):
    """
    The lock has expired, or isn't known: unless the message was settled before, it was or will be
    delivered again.
    """


class SessionLockLost(LockLost):
    """The lock of the session has expired: all of its messages will be delivered again."""


class SessionNotAvailable(BrokerError):
    """Another receiver holds the session."""


class MessageNotFound(BrokerError):
    """The message doesn't exist."""


class TransactionRolledBack(BrokerError):
    """The transaction was rolled back: nothing of it was done, and nothing will be."""


class TransactionUnknown(TransactionRolledBack):
    """No transaction has that id: it was never begun on this connection, or has ended."""


class TransactionTimeout(TransactionRolledBack):
    """The transaction lasted too long, and was rolled back."""


class StateDamaged(BrokerError):
    """The stored state of a session is corrupt. Setting the state repairs it."""


# Errors that the message causes, in every queue and at every later attempt. An internal error is
# one, too: otherwise its message would block all messages after it.
MESSAGE_FAULTS: Final = (MessageTooLarge, InvalidRequest, NotSupported, InternalError)
# The packages of each extra in pyproject.toml, quoted for a shell: `pip install` with the project's
# name would install another project of the public index.
_PACKAGES: Final = {
    "entra": "'azure-identity>=1.25,<2'",
    "otel": "'opentelemetry-exporter-otlp-proto-http>=1.45,<2' 'opentelemetry-sdk>=1.45,<2'",
    "schema": "'fastjsonschema>=2.21,<3'",
}


def locate(error: BrokerError, address: str, entity: str = "") -> None:
    """
    Add the address to the error's text, unless the text or the address makes that pointless.

    Applies to errors about the namespace or its rights; the caller, who named the entity, knows
    where the others happened. Works in place, so that class, outcome and traceback stay. An empty
    address changes nothing.
    """
    text = str(error)
    concerns = isinstance(error, Unavailable | OutcomeUnknown | Busy | NotAuthorized)
    if not (address and concerns) or any(each in text for each in address.split(",")):
        return
    where = f"{address}, {entity}" if entity and entity not in text else address
    error.args = (f"{where}: {text}",)


def no_answer(address: str, entity: str, seconds: float) -> NoAnswer:
    """The error of a request to that address (empty: unknown) without an answer in time."""
    where = f"{address}: " if address else ""
    whose = f" from {entity}" if entity else ""
    return NoAnswer(f"{where}no answer{whose} within {seconds:.3g} s")


def drop_tracebacks(error: BaseException) -> None:
    """
    Drop the tracebacks of an answered error and of its causes.

    They lead to frames, and those to the request. Where one of the frames holds the error, too,
    the body would stay in memory until the garbage collector runs, which is seldom.
    """
    each: BaseException | None = error
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__


@contextmanager
def starting_thread(what: str = "") -> Iterator[None]:
    """
    A context for work that may need a new thread. If none can be started, an OSError with EAGAIN is
    raised, as for any other lack of resources: Python has no class of its own for that.

    `what` begins the text.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError or str(error) != _NO_THREAD:
            raise
        raise OSError(errno.EAGAIN, f"{what}{error}") from error


def needs_extra(extra: str) -> str:
    """The text of the error that this extra isn't installed: what it needs, and the command."""
    return f"needs the extra `{extra}`: pip install {_PACKAGES[extra]}"
