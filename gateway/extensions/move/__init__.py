"""A move: queues and topics go from the primary to another namespace, under load."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:MOVE"],
    namespaces=["options:target"],
    checks=["options:problems"],
    home_wrappers=["feature:MOVED"],
    calls=["order:MOVES", "order:PLAN_MOVE", "order:MOVE"],
    features=["feature:make"],
    commands={
        "move": (
            "command:move",
            "Move queues and topics from the primary to another namespace, under load.",
        ),
    },
)
