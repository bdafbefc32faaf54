"""Producers that send all the time, and remember what they were told."""

from collections import Counter
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.history import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.message import Leg, Message
from gateway.ports import Broker

DEADLINE: Final = 12.0  # seconds: a producer's patience


@attrs.define(eq=False)
class Traffic:
    """What all producers of a run have seen."""

    records: list[Record] = attrs.field(factory=list)
    legs: Counter[Leg] = attrs.field(factory=Counter)
    sent: int = 0
    errors: int = 0
    longest_stall: float = 0.0  # seconds between two acknowledgements of one producer
    first_diverted: float | None = None
    stopping: bool = False

    @property
    def acknowledged(self) -> int:
        return sum(self.legs.values())

    async def produce(self, broker: Broker, entity: EntityPath, name: str, rate: float) -> None:
        """
        Send `rate` numbered messages a second until `stopping`.

        A send that failed isn't repeated: this producer believes what it is told.
        """
        number = 0
        next_send = last_ack = trio.current_time()
        while not self.stopping:
            await trio.sleep_until(next_send)
            # After a stall it doesn't hurry to catch up.
            next_send = max(next_send + 1 / rate, trio.current_time())
            number += 1
            if await self._send(broker, entity, _message(f"{name}-{number}", number)):
                now = trio.current_time()
                self.longest_stall = max(self.longest_stall, now - last_ack - 1 / rate)
                last_ack = now

    async def _send(self, broker: Broker, entity: EntityPath, message: Message) -> bool:
        identity = str(message.message_id)
        self.sent += 1
        self.records.append(
            Invoked(
                at=trio.current_time(),
                message_id=identity,
                entity=entity.key,
                fingerprint=fingerprint(message),
            )
        )
        outcome: Outcome | None = Outcome.UNKNOWN
        with trio.move_on_after(DEADLINE):
            try:
                leg = await broker.send(entity, [message])
            except BrokerError as error:
                outcome = error.outcome
            else:
                outcome = None
                self._accepted(leg)
        now = trio.current_time()
        if outcome is None:
            self.records.append(Acked(at=now, message_id=identity))
            return True
        self.errors += 1
        kind = Unknown if outcome is Outcome.UNKNOWN else Failed
        self.records.append(kind(at=now, message_id=identity))
        return False

    def _accepted(self, leg: Leg) -> None:
        self.legs[leg] += 1
        if leg is not Leg.PRIMARY and self.first_diverted is None:
            self.first_diverted = trio.current_time()


def _message(identity: str, number: int) -> Message:
    return Message(
        message_id=identity,
        body=f"order {number}".encode(),
        properties={"number": number, "source": identity.rpartition("-")[0]},
        content_type="text/plain",
    )
