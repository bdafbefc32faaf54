"""
Values that the two ends of an AMQP 1.0 connection exchange: the engine's events, and the outcomes,
errors and termini passed to it.

Ids belong to one engine and are never reused. Values inside of maps are those of
`gateway.wire.amqp.types`; symbols that are keys are plain `str`.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NewType

import attrs

SessionId = NewType("SessionId", int)
LinkId = NewType("LinkId", int)
DeliveryId = NewType("DeliveryId", int)

NOTHING: Final[Mapping[str, Any]] = {}


@attrs.frozen(kw_only=True)
class AmqpError:
    """
    The error with which a connection, session or link ended, or a message was rejected (part 2,
    2.8.14).
    """

    condition: str
    description: str = ""
    info: Mapping[str, Any] = NOTHING


class Durability(enum.IntEnum):
    """The state that a terminus keeps durably (part 3, 3.5.5)."""

    NONE = 0
    CONFIGURATION = 1
    UNSETTLED_STATE = 2


@attrs.frozen(kw_only=True)
class Terminus:
    """An end of a link: its source or its target (part 3, 3.5.3 and 3.5.4)."""

    address: str | None = None
    coordinator: bool = False  # the target of transactions; it has no address
    dynamic: bool = False  # the peer is asked to create a node and to name it
    durable: Durability = Durability.NONE
    copies: bool = False  # of sources: the peer browses, each message stays for other receivers
    filters: Mapping[str, Any] = NOTHING  # for sources only
    capabilities: tuple[str, ...] = ()


# --------------------------------------------------------------------------- outcomes (part 3, 3.4)


@attrs.frozen
class Accepted:
    """The receiver has accepted the message."""


@attrs.frozen
class Released:
    """The message is the sender's again, as if it had not been sent."""


@attrs.frozen(kw_only=True)
class Modified:
    """The message is the sender's again, changed."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: Mapping[str, Any] = NOTHING


@attrs.frozen(kw_only=True)
class Rejected:
    """The message is invalid; Service Bus also uses this for dead-lettering."""

    error: AmqpError | None = None


@attrs.frozen(kw_only=True)
class OtherState:
    """A delivery state that is neither an outcome nor one of transactions."""

    code: int  # the descriptor's number


Outcome = Accepted | Released | Modified | Rejected


# --------------------------------------------------------------------------- states (part 4, 4.5)


@attrs.frozen(kw_only=True)
class Declared:
    """The coordinator has begun the transaction that a message asked for."""

    txn_id: bytes


@attrs.frozen(kw_only=True)
class TransactionalState:
    """The delivery, or its outcome, counts only once its transaction is committed."""

    txn_id: bytes
    outcome: Outcome | None = None


DeliveryState = Outcome | Declared | TransactionalState | OtherState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


# --------------------------------------------------------------------------- events


@attrs.frozen(kw_only=True)
class ConnectionOpened:
    """The peer's open frame has arrived. A server answers with `Engine.open` or `Engine.close`."""

    container_id: str
    hostname: str | None
    properties: Mapping[str, Any]
    mechanism: str | None  # of SASL; None: the peer used no SASL
    user: str | None  # the user that SASL authenticated


@attrs.frozen(kw_only=True)
class ConnectionClosed:
    """
    The last event. `error` is the peer's, or the reason on our side.

    The outcome of everything unsettled is unknown to its sender. All ids are void; nothing more can
    be sent.
    """

    error: AmqpError | None
    is_broken: bool = False  # the peer broke the protocol, or its stream ended without a close


@attrs.frozen(kw_only=True)
class SessionOpened:
    """The peer began a session, or answered our begin. The engine has already answered."""

    session: SessionId


@attrs.frozen(kw_only=True)
class SessionClosed:
    """The session ended; a `LinkDetached` for each of its links came before."""

    session: SessionId
    error: AmqpError | None


class SenderSettles(enum.IntEnum):
    """The deliveries that the sending end settles before it sends them (part 2, 2.8.2)."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettles(enum.IntEnum):
    """The time at which the receiving end settles (part 2, 2.8.3)."""

    FIRST = 0
    SECOND = 1  # after the sender has


@attrs.frozen(kw_only=True)
class NewLink:
    """A link that a client asks for."""

    name: str  # unique among the links of this direction
    we_send: bool
    source: Terminus | None
    target: Terminus | None
    sender_settles: SenderSettles = SenderSettles.UNSETTLED
    receiver_settles: ReceiverSettles = ReceiverSettles.FIRST
    properties: Mapping[str, Any] = NOTHING
    max_message_size: int = 0  # bytes that we accept; 0: no limit


@attrs.frozen(kw_only=True)
class LinkAttached:
    """
    The peer attached a link, which `accept` or `refuse` answers; or the peer answered our attach.

    An answer without the terminus that the peer decides is a refusal: the detach with the reason
    follows.
    """

    link: LinkId
    session: SessionId
    name: str
    we_send: bool  # our role on this link
    source: Terminus | None
    target: Terminus | None
    sender_settles: SenderSettles
    receiver_settles: ReceiverSettles
    max_message_size: int  # bytes that the peer accepts; 0: no limit
    properties: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class LinkDetached:
    """
    The link has ended: the peer detached it, its session ended, or the peer answered a detach that
    was `awaited`. Or the engine detached the link itself: another link took its name, or the peer
    exceeded its credit by far. The engine has already answered the peer, except for links that
    linger.

    The link and its deliveries are void: settling them is ignored.
    """

    link: LinkId
    closed: bool  # False: the peer means to attach again
    error: AmqpError | None


@attrs.frozen(kw_only=True)
class LinkFlow:
    """
    The credit of a link on which we send has changed: `credit` more messages may be sent.

    `drain`: send what is available now, then call `Engine.drained`.
    """

    link: LinkId
    credit: int
    drain: bool


@attrs.frozen(kw_only=True)
class LinkDrained:
    """The peer has used or given back the credit of a link on which we receive."""

    link: LinkId


@attrs.frozen
class TransferReceived:
    """A whole message arrived. Unless it is `settled`, it waits for `Engine.settle`."""

    link: LinkId
    delivery: DeliveryId
    tag: bytes
    message_format: int
    payload: bytes  # the encoded sections
    settled: bool
    state: DeliveryState | None = None  # the delivery's state from its sender: its transaction


@attrs.frozen
class DispositionReceived:
    """
    The peer reported the outcome of a delivery that we sent, or settled a delivery that we
    received.

    `settled`: the peer has forgotten the delivery. Otherwise it waits for `Engine.settle`.
    """

    link: LinkId
    delivery: DeliveryId
    state: DeliveryState | None
    settled: bool


Event = (
    ConnectionOpened
    | ConnectionClosed
    | SessionOpened
    | SessionClosed
    | LinkAttached
    | LinkDetached
    | LinkFlow
    | LinkDrained
    | TransferReceived
    | DispositionReceived
)
