"""The section of the status on ordered entities, with its words."""

from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from attrs import field

from gateway.domain.status.figures import counter, gauge
from gateway.domain.status.sections import Line, Section


@attrs.frozen(kw_only=True)
class OrderStatus:
    """The keys of ordered entities, as this gateway knows them."""

    away: int = field(  # keys whose sends go to the backlog, as some of their messages are there
        metadata=gauge(
            "pairgate_ordered_keys_away", "Keys of ordered entities whose sends go to the backlog."
        )
    )
    unknown: int = field(  # ordered backlog queues that may have messages of any key
        metadata=gauge(
            "pairgate_ordered_queues_unknown",
            "Ordered backlog queues that may have messages of any key.",
        )
    )
    waiting: int = field(  # sends that wait for their key's return
        metadata=gauge(
            "pairgate_ordered_sends_waiting",
            "Sends that wait until their key's messages have left the backlog.",
        )
    )
    # Ordered backlog queues whose orderer this gateway is; None: it is that of all (no leases).
    leases: int | None = field(
        default=None,
        metadata=gauge(
            "pairgate_ordered_leases", "Ordered backlog queues whose lease this gateway has."
        ),
    )
    missed: int = field(  # sends that ended without having got the lease, since the start
        default=0,
        metadata=counter(
            "pairgate_ordered_missed_sends",
            "Sends that ended as they had neither the lease nor an orderer.",
            of=lambda order: None if order.leases is None else order.missed,
        ),
    )
    # Sends that were forwarded, by result, since the start; None: none is.
    forwarded: Mapping[str, int] | None = field(
        default=None,
        metadata=counter(
            "pairgate_ordered_forwarded_sends",
            "Sends that were forwarded to the orderer, by result.",
            labels=("result",),
        ),
    )


def _lines(order: OrderStatus | None) -> Iterator[Line]:
    if order is not None:
        unknown = f", {order.unknown} queues are unknown" if order.unknown else ""
        leases = "" if order.leases is None else f", {order.leases} leases are held here"
        missed = f", {order.missed} sends got no lease" if order.missed else ""
        waits = f"{order.away} keys are away, {order.waiting} sends wait"
        yield f"order    {waits}{unknown}{leases}{missed}"


ORDER: Final = Section[OrderStatus | None](
    path="pair.order", kind=OrderStatus | None, missing=None, lines=_lines
)
