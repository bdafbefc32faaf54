"""
Options of the endpoints, a class for each protocol. Times are in seconds, sizes in bytes.

Importing this module imports no front end, and no engine.
"""

from typing import Final

import attrs
from attrs import validators

from gateway.domain.option_fields import BYTES
from gateway.wire.amqp.options import EngineOptions
from gateway.wire.servicebus.atom_operations import PREMIUM, STANDARD

WAIT: Final = "wait"
DETACH: Final = "detach"


@attrs.frozen(kw_only=True)
class AmqpOptions:
    """Options of an AMQP endpoint. Times are in seconds, sizes in bytes."""

    namespace: str = "pairgate"  # reported to clients
    # In the configuration, the engine's options stand among these.
    engine: EngineOptions = attrs.field(factory=EngineOptions, metadata={"flat": True})

    # The time that a client has to read what is written to it in one go.
    write_timeout: float = attrs.field(default=240.0, validator=validators.gt(0.0))
    send_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    answer_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    attach_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))
    # The time that a sender's link waits for the namespace to say whether the entity exists.
    # Without an answer the link is opened, since a send may succeed when all other operations fail.
    probe_timeout: float = attrs.field(default=1.0, validator=validators.gt(0.0))
    # The time that a receiver waits for the next session: the default, and the maximum.
    session_wait: float = attrs.field(default=65.0, validator=validators.gt(0.0))
    longest_wait: float = attrs.field(default=240.0, validator=validators.gt(0.0))
    # The time that a client that drains its credit waits for the namespace to deliver. Node's SDK
    # waits for 200 ms, and then closes its link, and with it a session.
    drain_wait: float = attrs.field(default=0.1, validator=validators.gt(0.0))
    # The time that pre-settled dispositions wait for more, to be settled in one step.
    settle_delay: float = attrs.field(default=0.01, validator=validators.ge(0.0))
    # While the namespace can't be reached: receivers' links stay, and deliver nothing; or end.
    receivers_in_outage: str = attrs.field(default=WAIT, validator=validators.in_((WAIT, DETACH)))
    # A connection without links is closed after this time, as in Service Bus.
    idle_links_timeout: float = attrs.field(default=300.0, validator=validators.gt(0.0))

    max_message_size: int = attrs.field(
        default=1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    # Transfers that a link may have in flight: its credit is the rest of them.
    window: int = attrs.field(default=1000, validator=validators.ge(1))
    # For all links of one connection together. Beyond this limit, the socket isn't read.
    max_pending: int = attrs.field(default=4000, validator=validators.ge(1))
    max_pending_bytes: int = attrs.field(
        default=16 * 1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    # Messages sent to the broker in one step when several wait.
    max_group: int = attrs.field(default=100, validator=validators.ge(1))
    max_group_bytes: int = attrs.field(
        default=1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    # Messages received from the broker in one step, within the client's credit.
    max_taken: int = attrs.field(default=100, validator=validators.ge(1))
    # Unsettled deliveries of one link: beyond it, the client gets no further ones.
    max_unsettled: int = attrs.field(default=5000, validator=validators.ge(1))
    # Concurrent requests to $management of one connection; others wait.
    max_requests: int = attrs.field(default=8, validator=validators.ge(1))
    max_tokens: int = attrs.field(default=1000, validator=validators.ge(1))  # of one connection
    # Of one connection: transactions that are open, and the memory of all of them.
    max_transactions: int = attrs.field(default=100, validator=validators.ge(1))
    max_transaction_bytes: int = attrs.field(
        default=16 * 1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    # Of one transaction, as in Service Bus: messages and settlements, and the seconds since the
    # first of them.
    max_transaction_work: int = attrs.field(default=100, validator=validators.ge(1))
    transaction_timeout: float = attrs.field(default=120.0, validator=validators.gt(0.0))

    @property
    def max_partial(self) -> int:
        """Bytes of unfinished messages of a client: there is room for one of the largest size."""
        return max(self.engine.max_partial, self.max_message_size)


@attrs.frozen(kw_only=True)
class RestOptions:
    """Options of a REST endpoint. Times are in seconds."""

    namespace: str = "pairgate"  # reported by management
    # Reported, too. As in Service Bus, only an entity of Premium has its own maximum message size.
    tier: str = attrs.field(default=PREMIUM, validator=validators.in_((PREMIUM, STANDARD)))
    secure: bool = False  # True: clients connect with TLS, so that Location says https
    send_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    answer_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    longest_wait: float = attrs.field(default=240.0, validator=validators.gt(0.0))
    # The longest time until the answer of a receive whose client asked not to wait.
    shortest_wait: float = attrs.field(default=0.5, validator=validators.gt(0.0))


@attrs.frozen(kw_only=True)
class StorageQueueOptions:
    """
    Options of a Storage Queue endpoint. Times are in seconds. The SDKs wait 60 for a response.
    """

    secure: bool = False  # True: clients connect with TLS
    retry_for: float = attrs.field(default=50.0, validator=validators.gt(0.0))


@attrs.frozen(kw_only=True)
class AdminOptions:
    """Options of an admin endpoint. Times are seconds."""

    answer_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # A stream is never silent for longer, so that its reader knows that it still works.
    keep_alive: float = attrs.field(default=15.0, validator=validators.gt(0.0))
