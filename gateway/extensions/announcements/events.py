"""Events about the triggers that tell listeners of new messages."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class TriggersLost(Event):
    """No triggers arrive any more: listeners poll their queues."""

    level = "warning"

    gateway: str  # or the topic
    reason: str


@attrs.frozen(kw_only=True)
class TriggersRegained(Event):
    """Triggers arrive again: listeners stop polling."""

    gateway: str  # or the topic


@attrs.frozen(kw_only=True)
class TriggersDelayed(Event):
    """The topic of the triggers accepts no triggers: listeners learn later of new messages."""

    level = "warning"

    topic: str
    reason: str
