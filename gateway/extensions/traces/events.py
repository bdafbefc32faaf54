"""Event about the export of traces."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class TracesNotExported(Event):
    """Spans couldn't be delivered to the collector at `endpoint`, and were dropped."""

    level = "warning"
    same = ("endpoint",)

    endpoint: str
    reason: str
