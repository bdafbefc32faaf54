"""
The alarm of the primary, which takes no publishes while its memory or disk runs out.

RabbitMQ tells a connection (`connection.blocked`) only after its next publish, and reads nothing of
it from then on: requests and the acknowledgements of its consumers stick behind that publish. So a
connection that stays blocked is given up, and dialled again: RabbitMQ reads it until it publishes.
An alarm holds for the whole cluster. So one connection's is evidence for all: none of them
publishes until it's over.
"""

import attrs


@attrs.define(eq=False)
class PrimaryAlarm:
    _blocked: set[object] = attrs.field(factory=set, init=False)  # connections
    reason: str = attrs.field(default="", init=False)  # the primary's, of the last alarm

    @property
    def is_on(self) -> bool:
        return bool(self._blocked)

    def begin(self, connection: object, reason: str) -> None:
        """The primary has blocked that connection."""
        self._blocked.add(connection)
        self.reason = reason

    def finish(self, connection: object) -> None:
        """The connection isn't blocked any more, or has ended."""
        self._blocked.discard(connection)
