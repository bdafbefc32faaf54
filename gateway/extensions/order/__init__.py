"""Entities that keep the order of their sends through an outage: `ordered` in `[pairing]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    pairing=["options:ORDERED"],
    checks=["options:problems"],
    warnings=["options:warnings"],
    backlog_queues=["queues:queues_of"],
    exclusive=["options:ordered_patterns"],
    sections=["status:ORDER", "sessions:UNORDERED"],
    namespace_findings=["check:check_queues"],
    pairs=["addition:add"],
    drains=["ordered_drain:ORDERED"],
)
