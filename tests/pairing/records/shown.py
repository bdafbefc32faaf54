"""A namespace that shows what lies on it to all, as far as the reader of records uses it."""

from collections.abc import Sequence

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.health.process_records import ProcessRecord
from gateway.domain.health.record_coding import body_of
from gateway.domain.message import Delivery, Message
from tests.pairing.harness import LABEL
from tests.pairing.records.processes import KEYS


@attrs.define(eq=False)
class Shown:
    """A queue that shows its messages, each with a sequence number."""

    letters: list[Delivery] = attrs.field(factory=list)
    asked: list[tuple[int, int]] = attrs.field(factory=list)  # first number and limit of each peek
    error: BrokerError | None = None
    delay: float = 0.0  # seconds of a peek

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        self.asked.append((from_sequence, limit))
        await trio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        return [each for each in self.letters if each.sequence_number >= from_sequence][:limit]

    def put(self, *records: ProcessRecord) -> None:
        for each in records:
            self.put_body(body_of(each, LABEL, KEYS))

    def put_body(self, body: bytes, message_id: str = "") -> None:
        number = self.letters[-1].sequence_number + 1 if self.letters else 1
        message = Message(message_id=message_id or f"m{number}", body=body)
        self.letters.append(Delivery(message=message, sequence_number=number))

    def peeks(self) -> list[tuple[int, int]]:
        """The peeks since the last call."""
        asked, self.asked = self.asked, []
        return asked
