"""
Large batches: decoded in slices, and sent in parts, one after another.

A batch has no number of messages that is too large, only a size, as in Service Bus, and a megabyte
has room for 100,000 messages. Others run while they are decoded, and are stored between the parts.
A batch of up to `PART` messages is stored whole or not at all.

    outcome                       the client gets
    all parts accepted            accepted
    the first not sent            its error
    a later one not sent          unknown
    one unknown                   unknown
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.message import Message
from gateway.frontends.amqp.context import amqp_error, unreadable
from gateway.net.turns import RequestTurn
from gateway.wire.amqp.events import AmqpError, TransferReceived
from gateway.wire.amqp.message import encoded_size
from gateway.wire.amqp.servicebus.batches import BATCH, contents_of

LARGEST: Final = 1024 * 1024  # bytes, as in Service Bus, whose messages may be larger
PART: Final = 4500  # messages, the most that Service Bus took in a batch for years
_LARGE: Final = 8 * 1024  # bytes: a smaller batch takes a few milliseconds
_SLICE: Final = 25  # messages, of half a millisecond at most

REFUSED: Final = (MessageError, MessageTooLarge, InvalidRequest)  # before anything is sent


def is_large(event: TransferReceived) -> bool:
    return event.message_format == BATCH and len(event.payload) >= _LARGE


def error_of(error: BrokerError | MessageError) -> AmqpError:
    """The error of a transfer that can't be sent."""
    return amqp_error(error) if isinstance(error, BrokerError) else unreadable(error)


@attrs.define(eq=False)
class LargeBatch:
    """A large batch whose messages are decoded, sent and answered."""

    event: TransferReceived
    _decode: Callable[[bytes], Message]
    _contents: list[bytes] = attrs.field(factory=list, init=False)  # the encoded messages
    _part: list[Message] = attrs.field(factory=list, init=False)  # the next one
    _refusal: AmqpError | None = attrs.field(default=None, init=False)
    _taken: int = attrs.field(default=0, init=False)  # messages
    is_under_way: bool = attrs.field(default=False, init=False)  # a part that was taken
    _accepted: int = attrs.field(default=0, init=False)  # messages
    _error: BrokerError | None = attrs.field(default=None, init=False)

    @property
    def is_ready(self) -> bool:
        """True if a part, or the refusal, can be taken now."""
        return bool(self._part) or self._refusal is not None

    @property
    def has_begun(self) -> bool:
        """True if a part was taken."""
        return self._taken > 0

    @property
    def is_taken(self) -> bool:
        """True if no further part is to be taken."""
        return self._refusal is not None or self._taken == len(self._contents)

    @property
    def is_finished(self) -> bool:
        """True if no part has an outcome to come."""
        return self.is_taken and not self.is_under_way

    async def prepare(self, turn: RequestTurn | None) -> None:
        """
        Decode the next part, in the given turn of the batch's client. All messages are decoded
        before the first part is taken, because a malformed batch is refused as a whole.
        """
        if self._contents:
            following = self._contents[self._taken : self._taken + PART]
            self._part = await self._first_of(following, turn)
            return
        try:
            size = len(self.event.payload)
            if size > LARGEST:
                raise MessageTooLarge(f"a batch of {size} bytes, at most {LARGEST} expected")
            self._part = await self._first_of(self._kept(), turn)
        except REFUSED as error:
            self._refusal = error_of(error)

    def next_part(self) -> tuple[Message, ...] | AmqpError:
        """Take the part that is ready, or the refusal of the whole batch."""
        if self._refusal is not None:
            return self._refusal
        part, self._part = tuple(self._part), []
        self._taken += len(part)
        self.is_under_way = True
        return part

    def record(self, error: BrokerError | None) -> None:
        """Note the outcome of the part that is under way; after an error there is no other part."""
        self.is_under_way, self._error = False, error
        if error is None:
            self._accepted = self._taken
        else:
            self.give_up()

    def give_up(self) -> None:
        """Drop the parts that aren't taken."""
        del self._contents[self._taken :]
        self._part = []

    def verdict(self) -> BrokerError | None:
        """The outcome of the batch, once it is finished; None: accepted."""
        error = self._error
        if error is None or not self._accepted or error.outcome is Outcome.UNKNOWN:
            return error
        return OutcomeUnknown(
            f"{self._accepted} messages of the batch were accepted, then: {error}"
        )

    def _kept(self) -> Iterator[bytes]:
        for content in contents_of(self.event.payload):
            self._contents.append(content)
            yield content

    async def _first_of(self, contents: Iterable[bytes], turn: RequestTurn | None) -> list[Message]:
        """Decode all of them; return the messages of a part, which are the first ones."""
        part: list[Message] = []
        for number, content in enumerate(contents, 1):
            message = self._decode(content)
            if number <= PART:
                part.append(message)
                with suppress(MessageError):  # raised again where it is sent
                    encoded_size(message)  # the message keeps its encoding for the namespace
            if number % _SLICE == 0:
                await trio.lowlevel.checkpoint()  # between two slices others may run
                if turn is not None:
                    await turn.give_way()
        return part
