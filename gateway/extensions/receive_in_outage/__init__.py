"""Queues whose receivers get diverted messages from the backlog: `receive_in_outage`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    pairing=["options:RECEIVE_IN_OUTAGE"],
    checks=["options:problems"],
    warnings=["options:warnings"],
    backlog_queues=["queues:queues_of"],
    lists_primary=["queues:depend_on_primary"],
    backlog_choices=["queues:choose"],
    pairs=["queues:add"],
    drains=["session_drain:OWN"],
    wrappers=["feature:BOTH_SIDES"],
    namespace_findings=["check:check_queues"],
)
