"""Rehearses an outage: cuts this process's own way to a namespace for a while."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:DRILL"],
    checks=["options:problems"],
    interceptors=["feature:CUT"],
    calls=["order:DRILLS", "order:DRILL", "order:END_DRILL"],
    sections=["section:DRILL"],
    features=["feature:make"],
    services=["feature:SERVICE"],
    commands={
        "drill": (
            "command:drill",
            "Rehearse an outage: cut the running gateway off from its primary for a while.",
        ),
    },
)
