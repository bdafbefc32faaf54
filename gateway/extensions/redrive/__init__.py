"""Redrives: dead letters of the backlog or of a queue are shown, and moved back."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    calls=["order:REDRIVE", "order:DEAD_LETTERS"],
    page=["dead-letters.js"],
    features=["feature:make"],
    commands={
        "redrive": (
            "command:redrive",
            "Show why messages of the backlog are dead-lettered, and move them back into it.",
        ),
        "dead-letters": (
            "command:dead_letters",
            "Show the dead letters of the backlog by reason and entity, or those of QUEUE; nothing"
            " is changed.",
        ),
    },
)
