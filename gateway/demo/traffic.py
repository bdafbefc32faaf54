"""Producers that send all the time, and remember what they were told."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.history import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.message import Leg, Message
from gateway.ports import Broker

DEADLINE: Final = 12.0  # seconds: a producer's patience
KINDS: Final[Mapping[Outcome | None, type[Acked] | type[Failed] | type[Unknown]]] = {
    None: Acked,
    Outcome.NOT_SENT: Failed,
    Outcome.UNKNOWN: Unknown,
}


@attrs.define(eq=False)
class Traffic:
    """What all producers of a run have seen."""

    records: list[Record] = attrs.field(factory=list)
    legs: Counter[Leg] = attrs.field(factory=Counter)
    sent: int = 0  # messages, as all of these
    under_way: int = 0
    errors: int = 0
    longest_stall: float = 0.0  # seconds between two acknowledgements of one producer
    first_diverted: float | None = None
    stopping: bool = False

    @property
    def acknowledged(self) -> int:
        return sum(self.legs.values())

    async def produce(
        self, broker: Broker, entity: EntityPath, name: str, rate: float, *, batch: int = 1
    ) -> None:
        """
        Send `rate` times a second `batch` numbered messages, until `stopping`.

        A send that failed isn't repeated: this producer believes what it is told.
        """
        await trio.lowlevel.checkpoint()
        number = 0
        next_send = last_ack = trio.current_time()
        while not self.stopping:
            await trio.sleep_until(next_send)
            # From now on, not from when it was due: after a stall it doesn't hurry to catch up.
            next_send = trio.current_time() + 1 / rate
            messages = [_message(name, number + index) for index in range(1, batch + 1)]
            number += batch
            if await self._send(broker, entity, messages):
                now = trio.current_time()
                self.longest_stall = max(self.longest_stall, now - last_ack - 1 / rate)
                last_ack = now

    async def _send(self, broker: Broker, entity: EntityPath, messages: Sequence[Message]) -> bool:
        await trio.lowlevel.checkpoint()
        self._invoked(entity, messages)
        outcome: Outcome | None = Outcome.UNKNOWN
        with trio.move_on_after(DEADLINE):
            try:
                leg = await broker.send(entity, messages)
            except BrokerError as error:
                outcome = error.outcome
            else:
                outcome = None
                self._accepted(leg, len(messages))
        self._answered(messages, outcome)
        return outcome is None

    def _invoked(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        self.sent += len(messages)
        self.under_way += len(messages)
        self.records += [
            Invoked(
                at=trio.current_time(),
                message_id=str(message.message_id),
                entity=entity.key,
                fingerprint=fingerprint(message),
            )
            for message in messages
        ]

    def _answered(self, messages: Sequence[Message], outcome: Outcome | None) -> None:
        """`outcome` is that of the error; None: it was accepted."""
        self.under_way -= len(messages)
        self.errors += 0 if outcome is None else len(messages)
        kind = KINDS[outcome]
        now = trio.current_time()
        self.records += [kind(at=now, message_id=str(one.message_id)) for one in messages]

    def _accepted(self, leg: Leg, messages: int) -> None:
        self.legs[leg] += messages
        if leg is not Leg.PRIMARY and self.first_diverted is None:
            self.first_diverted = trio.current_time()


def _message(name: str, number: int) -> Message:
    return Message(
        message_id=f"{name}-{number}",
        body=f"order {number}".encode(),
        properties={"number": number, "source": name},
        content_type="text/plain",
    )
