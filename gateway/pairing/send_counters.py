"""Counts the sends of a pair by who accepted them and by outcome."""

from collections import Counter
from collections.abc import Sequence

import attrs

from gateway.domain.errors import Outcome
from gateway.domain.message import AcceptedBy
from gateway.domain.status import SendCount


@attrs.define(eq=False)
class SendCounters:
    """Messages since the start, by who accepted them or by the outcome of the failed send."""

    _counts: Counter[tuple[AcceptedBy | None, str]] = attrs.field(factory=Counter, init=False)

    def accepted(self, accepted_by: AcceptedBy, messages: int) -> None:
        self._counts[accepted_by, "accepted"] += messages

    def failed(self, outcome: Outcome, messages: int) -> None:
        self._counts[None, outcome.value] += messages

    def all(self) -> Sequence[SendCount]:
        return [
            SendCount(
                accepted_by="" if accepted_by is None else accepted_by.value,
                outcome=outcome,
                messages=messages,
            )
            for (accepted_by, outcome), messages in self._counts.items()
        ]
