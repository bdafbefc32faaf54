"""Events about the leases of ordered entities, which several gateways send to."""

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class OrderLeaseTaken(Event):
    """This gateway is the orderer of that ordered backlog queue."""

    level = "debug"

    queue: EntityPath
    seconds: float  # from its session's lock on: long if the last orderer hadn't let go


@attrs.frozen(kw_only=True)
class OrderLeaseLost(Event):
    """
    The lease of that ordered backlog queue ran out before this gateway could renew it. Its sends
    wait for the lease; with `on_lease_lost = "send"` those to the primary may go on.
    """

    level = "warning"

    queue: EntityPath
    reason: str
