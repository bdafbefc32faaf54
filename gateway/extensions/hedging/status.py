"""The section of the status on hedged sends, with its words."""

from collections.abc import Iterator
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import EACH, counter
from gateway.domain.status.sections import Line, Section
from gateway.extensions.hedging.hedging import Hedging
from gateway.extensions.hedging.options import HEDGING, RULE
from gateway.pairing.additions import Addition, PairCore


@attrs.frozen(kw_only=True)
class HedgingStatus:
    """Sends without an answer after `hedge_after`, since the start."""

    hedged: int = field(  # those with a second copy
        metadata=counter(
            "pairgate_hedged_sends", "Sends whose second copy went to the backlog queues."
        )
    )
    not_hedged: int = field(  # those without one, as `hedge_budget` was used up
        metadata=counter(
            "pairgate_not_hedged_sends", "Sends without a second copy, as the budget was used up."
        )
    )


def _lines(hedging: HedgingStatus | None) -> Iterator[Line]:
    if hedging is not None and (hedging.hedged or hedging.not_hedged):
        without = f", {hedging.not_hedged} not, by hedge_budget" if hedging.not_hedged else ""
        yield f"hedging  {hedging.hedged} sends hedged{without}"


# Each worker hedges its own sends.
SECTION: Final = Section[HedgingStatus | None](
    path="pair.hedging", kind=HedgingStatus | None, missing=None, metadata=EACH, lines=_lines
)


def add(core: PairCore) -> Addition | None:
    """The section's value; None: no send of the pair is hedged."""
    rules = (rule.of(RULE).hedge_after for rule in core.options.entities)
    if core.options.of(HEDGING).hedge_after is None and all(after is None for after in rules):
        return None
    [hedging] = [each for each in core.ways.copies if isinstance(each, Hedging)]
    budget = hedging.budget
    return Addition(
        sections={SECTION: lambda: HedgingStatus(hedged=budget.hedged, not_hedged=budget.withheld)}
    )
