"""The options of hedged sends, in `[pairing]` and for single entities; times in seconds."""

from typing import Final

import attrs
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.option_fields import NUMBER
from gateway.extensions.tables import Table
from gateway.pairing.options import PairOptions, entity_rule, positive


@attrs.frozen(kw_only=True)
class HedgingOptions:
    """The time after which a send is hedged, and the share of all sends that may be."""

    hedge_after: float | None = attrs.field(default=None, validator=validators.optional(positive))
    hedge_budget: float = attrs.field(
        default=0.05, validator=[validators.ge(0.0), validators.le(1.0)], metadata=NUMBER
    )  # share of the sends


@attrs.frozen(kw_only=True)
class HedgingRule:
    """The same for entities of `[[entities]]`. None: the option of the pair."""

    hedge_after: float | None = attrs.field(default=None, validator=validators.optional(positive))


HEDGING: Final = Table[HedgingOptions](
    name="hedging", kind=HedgingOptions, missing=HedgingOptions(), keys=True
)
RULE: Final = Table[HedgingRule](name="hedging", kind=HedgingRule, missing=HedgingRule(), keys=True)


def hedge_after(entity: EntityPath, options: PairOptions) -> float | None:
    """Seconds without an answer after which a send is hedged; None: never."""
    rule = entity_rule(entity, options.entities)
    own = None if rule is None else rule.of(RULE).hedge_after
    return options.of(HEDGING).hedge_after if own is None else own
