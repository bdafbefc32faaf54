"""Options of a REST endpoint. Importing this module doesn't import the front end."""

import attrs
from attrs import validators

from gateway.wire.servicebus.atom_operations import PREMIUM, STANDARD


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
