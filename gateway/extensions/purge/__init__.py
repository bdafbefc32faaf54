"""Purges: an operator deletes the messages of one backlog queue, which then never arrive."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    calls=["order:PURGE"],
    features=["feature:make"],
    commands={
        "purge": (
            "command:purge",
            "Delete the messages of a backlog queue of the running gateway.",
        ),
    },
)
