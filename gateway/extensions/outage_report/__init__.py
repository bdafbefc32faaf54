"""Follows each outage of the primary to its end, and reports it: for a post-mortem."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    calls=["outage:OUTAGES"],
    features=["feature:make"],
    services=["feature:SERVICE"],
    commands={
        "outage-report": (
            "command:outage_report",
            "Report the outages of the primary, as Markdown: cause, entities, curve and totals.",
        ),
    },
)
