"""What an AMQP endpoint allows its clients. Importing this doesn't import the engine."""

import attrs
from attrs import validators

from gateway.wire.amqp.options import EngineOptions


@attrs.frozen(kw_only=True)
class AmqpOptions:
    """Times are seconds, sizes are bytes."""

    namespace: str = "pairgate"  # the name that clients are told
    # In a configuration, its options stand among these.
    engine: EngineOptions = attrs.field(factory=EngineOptions, metadata={"flat": True})

    send_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    answer_timeout: float = attrs.field(default=30.0, validator=validators.gt(0.0))
    attach_timeout: float = attrs.field(default=10.0, validator=validators.gt(0.0))
    # A sender's link waits that long for the namespace to say whether there is such an entity:
    # without an answer it is opened, since a send may well be taken where nothing else is.
    probe_timeout: float = attrs.field(default=1.0, validator=validators.gt(0.0))
    # How long a receiver waits for the next session, if it doesn't say, and at most.
    session_wait: float = attrs.field(default=65.0, validator=validators.gt(0.0))
    longest_wait: float = attrs.field(default=240.0, validator=validators.gt(0.0))
    # A client that wants what there is now gives the namespace that long to look.
    drain_wait: float = attrs.field(default=0.5, validator=validators.gt(0.0))
    # What a client has settled already waits that long for more, to be settled in one step.
    settle_delay: float = attrs.field(default=0.01, validator=validators.ge(0.0))
    # A connection without links is closed after that, as Service Bus does.
    idle_links_timeout: float = attrs.field(default=300.0, validator=validators.gt(0.0))

    max_message_size: int = attrs.field(default=1024 * 1024, validator=validators.ge(1))
    # Transfers that a link may have under way: its credit is what is left of them.
    window: int = attrs.field(default=1000, validator=validators.ge(1))
    # Of all links of one connection. With more, its socket isn't read.
    max_pending: int = attrs.field(default=4000, validator=validators.ge(1))
    max_pending_bytes: int = attrs.field(default=16 * 1024 * 1024, validator=validators.ge(1))
    # What is sent in one step to the broker when several messages wait.
    max_group: int = attrs.field(default=100, validator=validators.ge(1))
    max_group_bytes: int = attrs.field(default=1024 * 1024, validator=validators.ge(1))
    # Taken from the broker in one step, of what the client's credit allows.
    max_taken: int = attrs.field(default=100, validator=validators.ge(1))
    # Deliveries of one link that the client has not settled: with more it gets no further ones.
    max_unsettled: int = attrs.field(default=5000, validator=validators.ge(1))
    # Requests to $management that are answered at the same time, of one connection; others wait.
    max_requests: int = attrs.field(default=8, validator=validators.ge(1))
    max_tokens: int = attrs.field(default=1000, validator=validators.ge(1))  # of one connection
