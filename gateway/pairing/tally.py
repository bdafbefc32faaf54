"""How the sends through a pair have ended."""

from collections import Counter
from collections.abc import Sequence

import attrs

from gateway.domain.errors import Outcome
from gateway.domain.message import Leg
from gateway.domain.status import SendCount


@attrs.define(eq=False)
class SendTally:
    """Messages since the start, by the leg that took them, or by the outcome of the failure."""

    _counts: Counter[tuple[Leg | None, str]] = attrs.field(factory=Counter, init=False)

    def accepted(self, leg: Leg, messages: int) -> None:
        self._counts[leg, "accepted"] += messages

    def failed(self, outcome: Outcome, messages: int) -> None:
        self._counts[None, outcome.value] += messages

    def all(self) -> Sequence[SendCount]:
        return [
            SendCount(leg="" if leg is None else leg.value, outcome=outcome, messages=messages)
            for (leg, outcome), messages in self._counts.items()
        ]
