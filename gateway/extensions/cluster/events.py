"""Events about the gateways of a cluster."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class PeerLost(Event):
    """A peer can't be asked: clients that settle what it holds are told that the lock is lost."""

    level = "warning"

    peer: str  # its address, or which process of this gateway it is
    reason: str


@attrs.frozen(kw_only=True)
class PeerFound(Event):
    """A peer that was lost answers again."""

    peer: str


@attrs.frozen(kw_only=True)
class PeerRefused(Event):
    """A connection to the port of the cluster was ended: its other side is no peer."""

    level = "warning"
    same = ("reason",)

    peer: str  # from where
    reason: str
