"""
Forwards sends of an ordered entity to the orderer, with `order_lease = "forward"`.

    orderer not known      this gateway asks by the lease queue who it is; the orderer names itself
                           over the cluster's channel
    it accepts, or fails   so does the send
    it isn't the orderer   nothing was sent: the send asks again
    it can't be reached    nothing was sent: the send waits for the lease, as with "wait", and the
                           gateway asks the orderer to let go
    it doesn't answer      the outcome is unknown: as a send whose primary doesn't answer, it goes
                           on, or ends with `on_unknown = "raise"`. To go on it needs the lease,
                           which an orderer that stands still can't renew

A forwarded send has its turn among those of its key at the forwarding gateway until the answer is
there, and another turn at the orderer. The orderer never forwards it again, nor waits for a lease.
"""

from collections.abc import Sequence
from typing import Final

import trio

from gateway.domain.errors import (
    BrokerError,
    NoAnswer,
    NotOrderer,
    TooLargeToForward,
    Unreachable,
)
from gateway.domain.message import Message
from gateway.extensions.order.lease import ForwardResult, OrderLease
from gateway.pairing.additions import OrderPeers
from gateway.pairing.sending import Batch, Sending

# Seconds without an answer, after which the gateway takes the lease as soon as it can be had.
PATIENCE: Final = 2.0


async def forward(peers: OrderPeers, sending: Sending, lease: OrderLease, until: float) -> bool:
    """
    Have the known orderer send the pending batches until then. Those without a verdict certainly
    weren't sent, or are tainted. False: a batch is too large, so that the send needs the lease.
    """
    orderer = lease.orderer
    for batch in sending.pending:
        error = await _forward(peers, orderer, sending, batch, lease, until)
        result = _result(error)
        lease.record_forwarded(result)
        if error is None:
            continue
        match result:
            case ForwardResult.NOT_ORDERER:
                lease.forget_orderer(orderer)
            case ForwardResult.UNREACHABLE:
                lease.forget_orderer(orderer, in_vain=True)
            case ForwardResult.NO_ANSWER:
                lease.forget_orderer(orderer, in_vain=True)
                sending.failed(batch, error)
            case ForwardResult.REFUSED:
                batch.fail(error)
        return result is not ForwardResult.TOO_LARGE
    return True


def _result(error: BrokerError | None) -> ForwardResult:
    match error:
        case None:
            return ForwardResult.ACCEPTED
        case NotOrderer():
            return ForwardResult.NOT_ORDERER
        case Unreachable():
            return ForwardResult.UNREACHABLE
        case TooLargeToForward():
            return ForwardResult.TOO_LARGE
        case NoAnswer():
            return ForwardResult.NO_ANSWER
    return ForwardResult.REFUSED


async def _forward(
    peers: OrderPeers,
    orderer: str,
    sending: Sending,
    batch: Batch,
    lease: OrderLease,
    until: float,
) -> BrokerError | None:
    """
    Forward one batch; return the error. If this gateway took the lease before there was an answer,
    the outcome is unknown, unless the batch certainly wasn't sent.
    """
    error: BrokerError | None = (unsent := Unreachable(f"no send could leave for {orderer}"))

    def hand_over() -> Sequence[Message]:
        nonlocal error
        if lease.is_open:
            raise NotOrderer(f"{orderer} isn't the orderer any more: this gateway is")
        error = NoAnswer(f"the orderer {orderer} gave no answer until this gateway had the lease")
        return sending.handed_over(batch)

    def not_sent() -> None:
        nonlocal error
        error = unsent

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_await_lease, lease, nursery.cancel_scope)
        try:
            batch.accepted_by = await peers.forward(
                orderer,
                sending.entity,
                lease.queue.path,
                hand_over,
                until - trio.current_time(),
                not_sent=not_sent,
            )
            error = None
        except BrokerError as caught:
            error = caught
        nursery.cancel_scope.cancel()
    return error


async def _await_lease(lease: OrderLease, forwarding: trio.CancelScope) -> None:
    """End the wait for the orderer's answer once this gateway has the lease."""
    await trio.sleep(PATIENCE)
    await lease.wait_taken()
    forwarding.cancel()
