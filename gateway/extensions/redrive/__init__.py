"""Redrives: dead letters of the backlog are shown, and moved back into it."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    calls=["order:REDRIVE"],
    features=["feature:make"],
    commands={
        "redrive": (
            "command:redrive",
            "Show why messages of the backlog are dead-lettered, and move them back into it.",
        ),
        "dead-letters": (
            "command:dead_letters",
            "Show the dead letters of the backlog by reason and entity; nothing is changed.",
        ),
    },
)
