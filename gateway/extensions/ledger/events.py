"""Events of the ledger."""

import attrs

from gateway.domain.events.gateway import Event


@attrs.frozen(kw_only=True)
class LedgerNotSaved(Event):
    """Facts couldn't be written into the ledger: `explain` and `reconcile` know less."""

    level = "warning"

    file: str
    facts: int
    reason: str
