"""Runs one command with a gateway of its own beside it, as long as the command runs."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    commands={
        "run": (
            "command:run",
            "Run a command with a gateway beside it, whose addresses it finds in its environment.",
        ),
    },
)
