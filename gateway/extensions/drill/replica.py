"""
Drills of a gateway with workers: the parent begins and ends them, and each worker cuts its own way
to the namespace as the parent does.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from gateway.extensions.drill.cut import Cut
from gateway.extensions.drill.order import Drill
from gateway.wire.pairgate import admin_json


def drill_message(drill: Drill | None, seconds: float) -> Mapping[str, Any]:
    """
    The message to a worker about the drill that is under way, with its remaining seconds; None:
    about its end.
    """
    value = None if drill is None else admin_json.value_of(drill)
    return {"drill": value, "seconds": seconds}


@attrs.define(eq=False)
class DrillReplica:
    """
    The worker's side. A drill ends at its time by itself, even if the parent has ended before.
    """

    cuts: Mapping[str, Cut]  # by namespace
    _drill: Drill | None = attrs.field(default=None, init=False)

    def apply(self, message: Mapping[str, Any]) -> None:
        """Begin or end the drill of the message, if it is about drills."""
        if "drill" not in message:
            return
        if self._drill is not None:
            self.cuts[self._drill.namespace].restore()
            self._drill = None
        if message["drill"] is not None:
            value = json.dumps(message["drill"]).encode()
            drill = self._drill = admin_json.parse_answer(value, Drill, "a drill")
            self.cuts[drill.namespace].begin(drill, trio.current_time() + message["seconds"])
