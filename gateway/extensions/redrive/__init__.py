"""Redrives: dead letters of the backlog are shown, and moved back into it."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    calls=["order:REDRIVE"],
    features=["feature:make"],
    commands={"redrive": "command:redrive", "dead-letters": "command:dead_letters"},
)
