"""A send that the primary doesn't answer soon goes to the backlog as well: `hedge_after`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    pairing=["options:HEDGING"],
    entities=["options:RULE"],
    namespace_findings=["check:check_queues"],
    second_copies=["hedging:Hedging"],
    sections=["status:SECTION"],
    pairs=["status:add"],
)
