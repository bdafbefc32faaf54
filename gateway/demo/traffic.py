"""Producers that send continuously, and remember the answers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import send_accepted_by
from gateway.checker.operations import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import AcceptedBy, Message
from gateway.ports import Broker

DEADLINE: Final = 12.0  # seconds: the timeout of a producer, by default
KINDS: Final[Mapping[Outcome | None, type[Acked] | type[Failed] | type[Unknown]]] = {
    None: Acked,
    Outcome.NOT_SENT: Failed,
    Outcome.UNKNOWN: Unknown,
}


@attrs.define(eq=False)
class Traffic:
    """The messages and answers of all producers of a run."""

    records: list[Record] = attrs.field(factory=list)
    accepted_by_counts: Counter[AcceptedBy] = attrs.field(factory=Counter)
    sent: int = 0  # messages, as are all of these
    under_way: int = 0
    errors: int = 0
    longest_stall: float = 0.0  # seconds between two acknowledgements of one producer
    first_diverted: float | None = None
    stopping: bool = False
    time_to_live: timedelta | None = None  # of each message
    deadline: float = DEADLINE  # seconds

    @property
    def acknowledged(self) -> int:
        return sum(self.accepted_by_counts.values())

    async def produce(
        self, broker: Broker, entity: EntityPath, name: str, rate: float, *, batch: int = 1
    ) -> None:
        """
        Send `batch` numbered messages `rate` times a second, until `stopping`.

        A failed send isn't repeated, whatever its outcome.
        """
        number = 0
        next_send = last_ack = trio.current_time()
        while not self.stopping:
            await trio.sleep_until(next_send)
            # Counted from now on, not from the due time: after a stall the producer doesn't catch
            # up.
            next_send = trio.current_time() + 1 / rate
            messages = [
                _message(name, number + index, self.time_to_live) for index in range(1, batch + 1)
            ]
            number += batch
            if await self._send(broker, entity, messages):
                now = trio.current_time()
                self.longest_stall = max(self.longest_stall, now - last_ack - 1 / rate)
                last_ack = now

    async def _send(self, broker: Broker, entity: EntityPath, messages: Sequence[Message]) -> bool:
        self._invoked(entity, messages)
        outcome: Outcome | None = Outcome.UNKNOWN
        with trio.move_on_after(self.deadline):
            try:
                accepted_by = await send_accepted_by(broker, entity, messages)
            except BrokerError as error:
                outcome = error.outcome
            else:
                outcome = None
                self._accepted(accepted_by, len(messages))
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
        """Record the answer; `outcome` is the error's, None if the send was accepted."""
        self.under_way -= len(messages)
        self.errors += 0 if outcome is None else len(messages)
        kind = KINDS[outcome]
        now = trio.current_time()
        self.records += [kind(at=now, message_id=str(one.message_id)) for one in messages]

    def _accepted(self, accepted_by: AcceptedBy, messages: int) -> None:
        self.accepted_by_counts[accepted_by] += messages
        if accepted_by is not AcceptedBy.PRIMARY and self.first_diverted is None:
            self.first_diverted = trio.current_time()


def _message(name: str, number: int, time_to_live: timedelta | None) -> Message:
    return Message(
        message_id=f"{name}-{number}",
        body=f"order {number}".encode(),
        properties={"number": number, "source": name},
        content_type="text/plain",
        time_to_live=time_to_live,
    )
