"""Faults on demand: the embedded namespace fails as an application's own tests ask for."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:FAULTS"],
    checks=["options:problems"],
    interceptors=["feature:FAULTS"],
    calls=["order:FAULTS", "order:ADD_FAULT", "order:CLEAR_FAULTS"],
    sections=["section:FAULTS"],
    features=["feature:make"],
    commands={
        "fault": (
            "command:fault",
            "Let the embedded namespace fail, for tests of the applications that use it.",
        ),
    },
)
