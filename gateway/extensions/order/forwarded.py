"""Sends that another gateway has forwarded to this one, as it is the orderer."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotOrderer, NotSupported
from gateway.domain.message import AcceptedBy, Message
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.sends import OrderedSends
from gateway.moments import Moments
from gateway.pairing.broker import WAIT_SHARE
from gateway.pairing.inflight import InFlight
from gateway.pairing.sending import Batch

# Seconds; as long as a client can make its send last (`limits.rest.longest_wait`).
LONGEST: Final = 240.0
LONGEST_WAIT: Final = 1.0  # seconds that a forwarded send waits for `max_inflight`


@attrs.frozen(eq=False, kw_only=True)
class ForwardedSends:
    """Implements `gateway.pairing.additions.SendsInOrder`."""

    sends: OrderedSends
    inflight: InFlight
    moments: Moments

    async def send_forwarded(
        self, entity: EntityPath, queue: EntityPath, messages: Sequence[Message], seconds: float
    ) -> AcceptedBy:
        """As `SendsInOrder.send_forwarded`."""
        if not self.sends.keeps_order(entity):
            raise NotOrderer(f"this gateway keeps no order of {entity}")
        keys = {key_of(entity, message) for message in messages}
        for key in keys:
            self.sends.check_orderer(key, queue)
        if len(keys) != 1:
            raise InvalidRequest(f"messages of one key expected, got {len(keys)} keys")
        taken, batch = self.moments.now(), Batch(messages)
        now = taken.monotonic
        size = self.sends.ways.admission.admit(entity, messages)
        # A short wait only: the other gateway holds room meanwhile, and may wait for room of this
        # one.
        room_until = now + min(seconds * WAIT_SHARE, LONGEST_WAIT)
        async with self.inflight.reserve(entity, size, room_until, in_order=True):
            deadline = now + min(seconds, LONGEST)
            await self.sends.deliver_in_order(entity, [batch], taken, deadline, is_forwarded=True)
        if batch.error is not None:
            raise batch.error
        assert batch.accepted_by is not None, "a batch without an error was accepted"
        return batch.accepted_by

    def record_orderer(self, queue: EntityPath, address: str) -> None:
        """As `OrderLeases.record_orderer`."""
        if self.sends.leases is None:
            raise NotSupported(f"this gateway has no lease of {queue}")
        self.sends.leases.record_orderer(queue, address)
