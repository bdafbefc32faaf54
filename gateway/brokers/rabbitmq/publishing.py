"""
Publishing to queues of a cluster, where a refusal can have two meanings.

A quorum queue without a leader refuses (`basic.nack`) the first message on a channel, as a full
queue does: from the loss of its leader's node until the next election, which took 0.1 to 0.4 s with
RabbitMQ 3.10; or as long as its nodes are in the minority. That channel then refuses all further
messages, because it knows only the old leader. A queue without a leader reports no messages and no
consumers; a full queue has messages, or a consumer that holds them. While the home node of a
classic queue is down, a message to the queue is returned as if the queue didn't exist.
"""

import math
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.brokers.rabbitmq.channels import Channels
from gateway.brokers.rabbitmq.sender import LeaderUnknown, RabbitmqSender
from gateway.changes import QueueTurn
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    OutcomeUnknown,
    PartlyAccepted,
    Unavailable,
)
from gateway.domain.message import Message
from gateway.wire.rabbitmq.properties import Outgoing, prepare

ELECTION: Final = 1.0  # seconds that a send waits for an election
_PAUSE: Final = 0.1  # seconds, for ten questions within `ELECTION`


@attrs.frozen(kw_only=True)
class Publishing:
    """Distinguishes a queue that refuses, or doesn't exist, from a queue that is unavailable."""

    _sender: RabbitmqSender
    _channels: Channels

    async def send_many(
        self, queue: str, batches: Sequence[Sequence[Outgoing]], since: float, turn: QueueTurn
    ) -> Sequence[BrokerError | None]:
        """
        As `RabbitmqSender.send_many`, but a queue without a leader gets a second to elect one, and
        the batches that it refused are published again. Never raises a `BrokerError`.

        The verdict for a batch may be:
            QuotaExceeded: the queue refuses although it has a leader.
            EntityNotFound: the queue doesn't exist, as the broker confirmed.
            Unavailable: the queue has no leader, or the only node that has the queue is down.
        """
        deadline = trio.current_time() + ELECTION
        led_since = math.inf
        verdicts: list[BrokerError | None] = [None] * len(batches)
        left = list(range(len(batches)))
        while left:
            found = await self._tried(queue, [batches[n] for n in left], since, led_since, turn)
            for index, verdict in zip(left, found, strict=True):
                verdicts[index] = verdict
            left = [index for index in left if isinstance(verdicts[index], LeaderUnknown)]
            if not left or trio.current_time() >= deadline:
                break
            try:
                if await self._has_leader(queue):
                    led_since = trio.current_time()
                else:
                    await trio.sleep(_PAUSE)
            except BrokerError as error:
                for index in left:
                    verdicts[index] = error
                break
        return await self._explained(queue, verdicts)

    async def _tried(
        self,
        queue: str,
        batches: Sequence[Sequence[Outgoing]],
        since: float,
        led_since: float,
        turn: QueueTurn,
    ) -> Sequence[BrokerError | None]:
        try:
            return await self._sender.send_many(queue, batches, since, led_since, turn)
        except BrokerError as error:
            return [error] * len(batches)

    async def _explained(
        self, queue: str, verdicts: Sequence[BrokerError | None]
    ) -> Sequence[BrokerError | None]:
        """The verdicts as they leave the adapter."""
        missing: BrokerError | None = None
        if any(isinstance(verdict, EntityNotFound) for verdict in verdicts):
            try:
                await self._channels.check(queue)
                missing = Unavailable(
                    f"{queue}: the broker returned the message, although the queue exists; its"
                    " node may be down"
                )
            except BrokerError as error:
                missing = error
        return [
            missing
            if isinstance(verdict, EntityNotFound)
            else Unavailable(str(verdict))
            if isinstance(verdict, LeaderUnknown)
            else verdict
            for verdict in verdicts
        ]

    async def _has_leader(self, queue: str) -> bool:
        try:
            found = await self._channels.inspect(queue)
        except Unavailable as error:  # a classic queue may have kept an unconfirmed message
            raise OutcomeUnknown(f"{queue} didn't confirm, then: {error}") from error
        return bool(found.message_count or found.consumer_count)


def verdict_of(
    verdict: BrokerError | None, written: Sequence[Outgoing], messages: Sequence[Message]
) -> BrokerError | None:
    """
    The verdict for a batch: of `PartlyAccepted` the messages themselves, instead of what was
    written. A batch with one message several times has one outcome, which is unknown.
    """
    if not isinstance(verdict, PartlyAccepted):
        return verdict
    if len({id(message) for message in messages}) != len(messages):
        return OutcomeUnknown(str(verdict))
    pairs = zip(messages, written, strict=True)
    accepted = [message for message, each in pairs if verdict.has_accepted(each)]
    return PartlyAccepted(str(verdict), accepted, verdict.why)


def encoded(message: Message) -> Outgoing:
    """
    Encode the message as RabbitMQ takes it.

    Raises:
        InvalidRequest: AMQP can't encode a field of the message.
    """
    try:
        return prepare(message)
    except MessageError as error:
        raise InvalidRequest(str(error)) from error
