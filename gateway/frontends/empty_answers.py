"""
Receives over HTTP. Their clients take an empty answer for an empty queue, so that none is given
while the namespace can't be reached: then the answer is `Unavailable`, also where the outcome of
the receive is unknown, as nothing was handed to the client.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from gateway.capabilities import Polls, ReceivesAvailable
from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Unavailable
from gateway.domain.message import Delivery
from gateway.frontends.leasing import Leasing
from gateway.offering import offered

# Seconds for the namespace to say that a queue is empty, after a receive that found nothing: a
# round trip over a slow line, with room.
CONFIRM: Final = 1.0
# Seconds from a receive to its refusal in an outage, unless the client waits less: some clients ask
# again at once, whatever `Retry-After` says.
_BETWEEN_REFUSALS: Final = 1.0


async def receive_in_time(
    leases: Leasing,
    entity: EntityPath,
    limit: int,
    seconds: float,
    *,
    waits: bool,
    any_token: bool = False,
) -> Sequence[Delivery]:
    """
    As `Leasing.receive` with `waits`, else as `Leasing.receive_now`, for at most `seconds`. The
    result is empty if the namespace says that there is nothing, or can't say it.

    Raises:
        Unavailable: the namespace can't be reached, or doesn't answer.
    """
    began = trio.current_time()
    receive = leases.receive if waits else leases.receive_now
    try:
        with away_for_outage():
            with trio.move_on_after(seconds):
                return await receive(entity, limit, any_token=any_token)
            return await _confirmed(leases, entity, limit, any_token=any_token)
    except Unavailable as error:
        failure = error
    await trio.sleep_until(began + min(seconds, _BETWEEN_REFUSALS))
    raise failure


async def _confirmed(
    leases: Leasing, entity: EntityPath, limit: int, *, any_token: bool
) -> Sequence[Delivery]:
    with answered_within(CONFIRM, f"from {entity}", error=Unavailable):
        receiver = await leases.open(entity)
        # One that polls has asked the namespace itself, and each further question is billed.
        asks = offered(receiver, ReceivesAvailable) is not None and offered(receiver, Polls) is None
        return await leases.receive_now(entity, limit, any_token=any_token) if asks else ()


@contextmanager
def away_for_outage() -> Iterator[None]:
    """Raise `Unavailable` for each error of the block that counts as an outage."""
    try:
        yield
    except BrokerError as error:
        if error.counts_as_outage and not isinstance(error, Unavailable):
            raise Unavailable(str(error)) from error
        raise
