"""
The alarm of the primary, which takes no publishes while its memory or disk runs out.

RabbitMQ tells a connection (`connection.blocked`) only after its next publish, and reads nothing of
it from then on: requests and the acknowledgements of its consumers stick behind that publish. So a
connection that stays blocked is given up, and dialled again: RabbitMQ reads it until it publishes.
An alarm holds for the whole cluster. So one connection's is evidence for all: none of them
publishes until it's over.
"""

import math

import attrs
import trio


@attrs.define(eq=False)
class PrimaryAlarm:
    # Connections, and since when, by Trio's clock.
    _blocked: dict[object, float] = attrs.field(factory=dict, init=False)
    reason: str = attrs.field(default="", init=False)  # the primary's, of the last alarm

    @property
    def is_on(self) -> bool:
        return bool(self._blocked)

    def begin(self, connection: object, reason: str) -> None:
        """The primary has blocked that connection."""
        self._blocked[connection] = trio.current_time()
        self.reason = reason

    def finish(self, connection: object) -> None:
        """The connection isn't blocked any more, or has ended."""
        self._blocked.pop(connection, None)

    def has_blocked(self, connection: object, seconds: float) -> bool:
        """True if the primary has read nothing of that connection for as long as that."""
        return trio.current_time() - self._blocked.get(connection, math.inf) >= seconds
