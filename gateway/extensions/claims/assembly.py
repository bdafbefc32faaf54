"""The rows of packing and the claim check, between a broker and its clients."""

from collections.abc import Sequence
from typing import Final

from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.extensions.claims.options import CLAIMS, PACKING
from gateway.ports import Broker, Service


async def _pack(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    rules = wrapping.config.of(PACKING)
    if not rules:
        return broker, ()
    # The wrapper's classes, which only a process with such rules needs.
    from gateway.extensions.claims.opening import pack

    packed = pack(wrapping, broker, rules)
    return packed, [packed]


async def _refer(wrapping: Wrapping, broker: Broker) -> tuple[Broker, Sequence[Service]]:
    """As `refer`. Where `leads`, bodies that no message needs are deleted."""
    settings = wrapping.config.of(CLAIMS)
    if settings is None:
        return broker, ()
    # The wrapper's classes and its stores, which only a process with claims needs.
    from gateway.extensions.claims.collector import Collector
    from gateway.extensions.claims.opening import refer

    claimed = await refer(wrapping, broker, settings)
    return claimed, [Collector(claimed.claim_check)] if wrapping.leads else []


# Packs are made before the claim check: it sees their size.
PACKS: Final = WrapperRow(
    "packing", "gateway/extensions/claims/packing.py", "[[packing]]", _pack, in_commands=True
)
REFERENCES: Final = WrapperRow(
    "claim check", "gateway/extensions/claims/broker.py", "[claims]", _refer, in_commands=True
)
