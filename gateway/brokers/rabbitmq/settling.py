"""
The settlements of a RabbitMQ receiver: written together, and answered together (`unsettled`).

Dead-lettering is a send to another queue, and an acknowledgement.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import attrs

from gateway.brokers.rabbitmq.deliveries import Held, as_dead_letter, check_settlement
from gateway.brokers.rabbitmq.unsettled import UnsettledDeliveries, lock_lost
from gateway.capabilities import WritesDeadLetters
from gateway.capabilities.settling import SettlementDoubts
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, OutcomeUnknown
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Settlement
from gateway.net.rabbitmq.channel import Channel
from gateway.ports import WallClock


@attrs.frozen(eq=False, kw_only=True)
class RabbitmqSettling:
    """Settles the deliveries of one receiver, as `Receiver` and `SettlesMany` say."""

    _entity: EntityPath
    _dead_letters: WritesDeadLetters
    _clock: WallClock
    _lock_duration: float
    _deliveries: UnsettledDeliveries
    _doubts: SettlementDoubts = attrs.field(factory=SettlementDoubts)

    async def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """
        As `Receiver.settle`. AMQP 0-9-1 has no answer to a settlement, so it returns once the
        broker has handled it. A repetition waits for the same answer.

        Raises:
            NotSupported: a deferral, an abandonment with new properties, or the dead-lettering of a
                message that was dropped by `forget_message`.
            EntityNotFound: there is no dead-letter queue; the message stays locked.
        """
        check_settlement(settlement, self._entity)
        with self._doubts.settling(delivery.lock_token):
            channel = self._deliveries.written_on(delivery, settlement)
            if channel is None:
                channel = await self._write_one(self._claim(delivery), settlement)
            await self._deliveries.flush(channel, (delivery,))

    async def settle_many(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> Sequence[BrokerError | None]:
        """
        As `SettlesMany.settle_many`: dead letters last; all other settlements share one answer.
        """
        verdicts, channel = self._write(settlements)
        unanswered: BrokerError | None = None
        if channel is not None:
            try:
                await self._deliveries.flush(channel, [delivery for delivery, _ in settlements])
            except OutcomeUnknown as error:
                unanswered = error
        for index, (delivery, settlement) in enumerate(settlements):
            if isinstance(settlement, DeadLetter):
                try:
                    await self.settle(delivery, settlement)
                except BrokerError as error:
                    verdicts[index] = error
            else:
                verdicts[index] = self._doubts.resolve(
                    delivery.lock_token, verdicts[index] or unanswered
                )
        return verdicts

    def renew(self, delivery: Delivery) -> datetime:
        """
        As `Receiver.renew`: the lock is the receiver's own, unknown to the broker.

        Raises:
            NotSupported: the lock would exceed `longest_lock`.
        """
        with self._doubts.using(delivery.lock_token):
            self._deliveries.renew(delivery, self._lock_duration)
        return self._clock() + timedelta(seconds=self._lock_duration)

    async def delete(self, taken: Sequence[Delivery]) -> Sequence[Delivery]:
        """Complete what is received without locks; the deliveries have none after that."""
        held = self._deliveries.claim_all(taken)
        self._deliveries.acknowledge(held)
        if held:
            # The messages may be deleted, and these deliveries the only ones.
            with suppress(OutcomeUnknown):
                await self._deliveries.flush(held[0].channel)
        return [attrs.evolve(each, lock_token=None, locked_until=None) for each in taken]

    def _write(
        self, settlements: Sequence[tuple[Delivery, Settlement]]
    ) -> tuple[list[BrokerError | None], Channel | None]:
        """
        Write all settlements except dead-letterings. Return the verdicts known so far, and the
        channel to flush for the others.
        """
        verdicts: list[BrokerError | None] = [None] * len(settlements)
        channel: Channel | None = None
        completed, returned = list[Held](), list[Held]()
        for index, (delivery, settlement) in enumerate(settlements):
            if isinstance(settlement, DeadLetter):
                continue
            self._doubts.begin(delivery.lock_token)
            earlier = self._deliveries.written_on(delivery, settlement)
            if earlier is not None:
                channel = earlier
                continue
            try:
                if settlement.__class__ is not Complete:  # mostly: there is nothing to check
                    check_settlement(settlement, self._entity)
                held = self._claim(delivery)
            except BrokerError as error:
                verdicts[index] = error
            else:
                channel = self._deliveries.record_settlement(held, settlement)
                (returned if isinstance(settlement, Abandon) else completed).append(held)
        self._deliveries.acknowledge(completed)
        self._deliveries.give_back(returned)
        return verdicts, channel

    async def _write_one(self, held: Held, settlement: Settlement) -> Channel:
        if isinstance(settlement, DeadLetter):
            await self._dead_letter(held, settlement)
        if isinstance(settlement, Abandon):
            self._deliveries.give_back([held])
        else:
            self._deliveries.acknowledge([held])
        return self._deliveries.record_settlement(held, settlement)

    def _claim(self, delivery: Delivery) -> Held:
        held = self._deliveries.claim(delivery)
        if held is None:
            raise lock_lost(delivery)
        return held

    async def _dead_letter(self, held: Held, settlement: DeadLetter) -> None:
        try:
            await self._dead_letters.dead_letter(self._entity, as_dead_letter(held, settlement))
        except BaseException:
            self._deliveries.put_back(held)  # not acknowledged: stays locked until its lock expires
            raise
