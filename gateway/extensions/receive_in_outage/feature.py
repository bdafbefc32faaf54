"""The row of the wrapper in a gateway's process."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.app.assembly.wrapper_rows import WrapperRow, Wrapping
from gateway.domain.entity import EntityPath
from gateway.extensions.receive_in_outage.options import RECEIVE_IN_OUTAGE
from gateway.moments import Moments
from gateway.ports import Broker, Service, WallClock
from gateway.telemetry.watch import GatewayWatch


async def _receive_from_both(
    wrapping: Wrapping, broker: Broker
) -> tuple[Broker, Sequence[Service]]:
    """The pair, with the receivers of its own."""
    pairing, pair, runtime = wrapping.config.pairing, wrapping.pair, wrapping.runtime
    if pairing is None or pair is None:
        return broker, ()
    options = pairing.options
    wanted = options.of(RECEIVE_IN_OUTAGE)
    if not wanted.receive_in_outage:
        return broker, ()
    # The wrapper's classes, which only a pair with such entities needs.
    from gateway.extensions.receive_in_outage.backlog_receiver import BacklogOpening
    from gateway.extensions.receive_in_outage.broker import TwoSidedBroker

    to_backlog = pair.broker.ways.to_backlog
    opening = BacklogOpening(
        envelope=to_backlog.envelope,
        destination=pair.destination,
        moments=Moments(runtime.now),
        options=pairing.syphon,
        observer=runtime.observer,
        done=partial(_count_done, runtime.observer, runtime.now),
    )
    two_sided = TwoSidedBroker(
        broker=broker,
        secondary=to_backlog.broker,
        label=options.label,
        options=wanted,
        entity_cache=pair.entity_cache,
        opening=opening,
        rng=runtime.rng("receivers of the backlog"),
        clock=runtime.now,
    )
    return two_sided, ()


def _count_done(watch: GatewayWatch, clock: WallClock, entity: EntityPath, messages: int) -> None:
    """Let the depth of the backlog be known at once."""
    watch.backlog.moved(entity, messages, clock())


BOTH_SIDES: Final = WrapperRow(
    "both sides",
    "gateway/extensions/receive_in_outage/broker.py",
    "`receive_in_outage`",
    _receive_from_both,
)
