"""Counts the connections of clients by the protocol of their endpoint."""

from collections import Counter

import attrs


@attrs.define(eq=False)
class Connections:
    """The counts since the start, except `open`."""

    open: Counter[str] = attrs.field(factory=Counter)  # now
    opened: Counter[str] = attrs.field(factory=Counter)
    refused: Counter[str] = attrs.field(factory=Counter)  # surplus ones

    def begin(self, protocol: str) -> None:
        """Count a connection that is served from now on, until `end`."""
        self.open[protocol] += 1
        self.opened[protocol] += 1

    def end(self, protocol: str) -> None:
        self.open[protocol] -= 1
