"""Ways to send beyond `Broker.send`: fast failures, who has accepted, several batches, dates."""

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

from gateway.domain.entity import EntityPath
from gateway.domain.errors import MESSAGE_FAULTS, BrokerError, QuotaExceeded, Unavailable
from gateway.domain.message import AcceptedBy, Message
from gateway.offering import capability, offered
from gateway.ports import Broker

T = TypeVar("T")

Send = Callable[[EntityPath, Sequence[Message]], Awaitable[T]]
"""A method that sends a batch: `Broker.send`, `FailsFast.try_send`, ..."""

Batches = Sequence[Sequence[Message]]

SendEach = Callable[[EntityPath, Batches], Awaitable[Sequence[T | BrokerError]]]
"""
A function that sends several batches in their order: returns for each the result of `Send`, or the
error. A call has its place among concurrent calls before its first checkpoint
(`SendsMany.send_many`).
"""

# A single message of several may have caused these errors.
FAULTS_OF_ONE: Final = (*MESSAGE_FAULTS, QuotaExceeded)


@capability(Broker, "this namespace needs no connection")
class FailsFast(Protocol):
    """A namespace that needs a connection and remembers for some seconds that it got none."""

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`, for a caller that can send elsewhere: in the pause after a failed attempt
        to connect, the method raises that failure again, at once, and doesn't connect.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...


@capability(Broker, "this namespace diverts no sends")
class Diverts(Protocol):
    """A broker that may divert a send: a pair, or a namespace that is a Pairgate and says so."""

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        """
        As `Broker.send`; return which namespace or store accepted the messages.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...


def accepting_send(broker: Broker) -> Send[AcceptedBy]:
    """`Diverts.send_diverting` of the broker; one that diverts nothing is its own primary."""
    diverts = offered(broker, Diverts)
    if diverts is not None:
        return diverts.send_diverting

    async def send(entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        await broker.send(entity, messages)
        return AcceptedBy.PRIMARY

    return send


async def send_accepted_by(
    broker: Broker, entity: EntityPath, messages: Sequence[Message]
) -> AcceptedBy:
    """Send as `accepting_send` does; a caller that sends often asks for that once."""
    return await accepting_send(broker)(entity, messages)


_in_doubt: Final[ContextVar[bool]] = ContextVar("in_doubt", default=False)


@contextmanager
def continued(*, in_doubt: bool) -> Iterator[None]:
    """
    The sends in this context go on where their caller had tried before. With `in_doubt` that
    attempt had an unknown outcome, so each copy of theirs may be the second.
    """
    token = _in_doubt.set(in_doubt)
    try:
        yield
    finally:
        _in_doubt.reset(token)


def is_in_doubt() -> bool:
    """True if the sends of this context may be second copies."""
    return _in_doubt.get()


@capability(Broker, "this namespace doesn't bound its sends")
class BoundsSends(Protocol):
    """
    A broker each of whose sends ends by itself, whatever its namespaces do: a pair. Its callers
    need no deadline of their own, unless they want an earlier one.
    """

    def longest_send(self) -> float:
        """Return the seconds after which each send has its verdict."""
        ...


def longest_send_of(broker: Broker) -> Callable[[], float]:
    """`BoundsSends.longest_send` of the broker; infinite if it doesn't bound its sends."""
    bounds = offered(broker, BoundsSends)
    return _without_bound if bounds is None else bounds.longest_send


def _without_bound() -> float:
    return math.inf


@capability(Broker, "this namespace can't take several batches at once")
class SendsMany(Protocol):
    """
    A namespace that has several batches in flight, with a verdict for each batch: it stores them in
    one step, or its protocol has a pipeline. `send_each` sends to any namespace.
    """

    async def send_many(
        self, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
    ) -> Sequence[BrokerError | None]:
        """
        As `Broker.send` for each batch; return a verdict for each: None, or the error that `send`
        would have raised. Never raises a `BrokerError`: an error that fails all batches is the
        verdict of each. With `fails_fast` as `FailsFast.try_send`, where the namespace needs a
        connection.

        The order is kept, and so is that of concurrent calls: a call has its place before its first
        checkpoint. Batches behind one that isn't accepted keep their places; a pair sends that one
        again later, or to its backlog.

        A cancellation leaves the outcome of all batches unknown.
        """
        ...


@capability(Broker, "this namespace takes one batch at a time")
class SendsTogether(Protocol):
    """
    A namespace without `SendsMany`, which may all the same accept the messages of several batches
    in one request.
    """

    def sends_together(self) -> bool:
        """Return True if the namespace accepts several batches in one request now."""
        ...


async def send_each(
    broker: Broker, entity: EntityPath, batches: Batches, *, fails_fast: bool = False
) -> Sequence[BrokerError | None]:
    """
    Send the batches in their order; return a verdict for each, as `SendsMany.send_many` does.

    A namespace without `SendsMany` gets all messages as one batch. If it refuses them for the fault
    of one message, it gets each batch by itself, one after the other, until an error says that the
    namespace is in trouble: the remaining batches aren't sent. The order is kept within one call,
    so a caller that keeps it across calls makes one call at a time.

    `fails_fast` is as in `SendsMany.send_many`. A cancellation leaves all outcomes unknown.
    """
    many = offered(broker, SendsMany)
    if many is not None:
        return await many.send_many(entity, batches, fails_fast=fails_fast)
    send = broker.send
    if fails_fast and (trying := offered(broker, FailsFast)) is not None:
        send = trying.try_send
    error = await outcome_of(send, entity, [message for batch in batches for message in batch])
    if len(batches) == 1 or not isinstance(error, FAULTS_OF_ONE):
        return [error] * len(batches)
    return await send_in_turn(send, entity, batches)


async def send_in_turn(
    send: Send[None], entity: EntityPath, batches: Batches
) -> Sequence[BrokerError | None]:
    """
    Send one batch after the other in that way, until an error says that the namespace is in
    trouble; return the verdicts as `send_each` does.
    """
    verdicts: list[BrokerError | None] = []
    trouble: BrokerError | None = None
    for batch in batches:
        if trouble is not None:
            verdicts.append(Unavailable(f"not sent after an earlier failure: {trouble}"))
            continue
        verdicts.append(await outcome_of(send, entity, batch))
        if (error := verdicts[-1]) is not None and error.counts_as_outage:
            trouble = error
    return verdicts


async def outcome_of(
    send: Send[None], entity: EntityPath, messages: Sequence[Message]
) -> BrokerError | None:
    """Send one batch in that way; return its verdict, as `send_each` does."""
    try:
        await send(entity, messages)
    except BrokerError as error:
        return error
    return None


@capability(Broker, "this namespace gives scheduled messages no sequence number")
class Schedules(Protocol):
    """A namespace that returns the sequence numbers of scheduled messages, to cancel them."""

    async def schedule(self, entity: EntityPath, messages: Sequence[Message]) -> Sequence[int]:
        """
        As `Broker.send`, for messages that each have `scheduled`; return a sequence number for
        each, in their order. A message gets another sequence number when it becomes due.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...

    async def cancel_scheduled(self, entity: EntityPath, sequence_numbers: Sequence[int]) -> None:
        """
        Return once the scheduled messages with these sequence numbers are removed, durably. The
        outcome of a cancelled call is unknown.

        Raises:
            MessageNotFound: a message doesn't exist or has become due; none was removed.
            EntityNotFound: there is no such entity.
        """
        ...


@capability(Broker, "this namespace gets dead letters from receivers alone")
class WritesDeadLetters(Protocol):
    """A namespace that adds messages to the dead letters of a queue or subscription."""

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        """
        Return once the dead letters of the entity have the message, durably, where it never
        expires. Its reason and description are among its properties, as those of a dead letter that
        was received. The outcome of a cancelled call is unknown.

        Raises:
            BrokerError: as `Broker.send`.
            EntityNotFound: there is no such entity, or it has no dead-letter queue.
        """
        ...


@capability(Broker, "a subscription of this namespace gets messages from its topic alone")
class SendsToSubscriptions(Protocol):
    """A namespace that takes messages for one subscription, past the rules of its topic."""

    async def send_to_subscription(
        self, subscription: EntityPath, messages: Sequence[Message]
    ) -> None:
        """
        As `Broker.send`, to that subscription alone.

        Raises:
            BrokerError: as `Broker.send`.
            InvalidRequest: it isn't a subscription.
        """
        ...


@capability(Broker, "this namespace deletes a message for its receiver alone")
class DeletesSent(Protocol):
    """A namespace that lets a sender delete its message, as long as nobody has received it."""

    async def send_deletable(self, entity: EntityPath, message: Message) -> object:
        """
        As `Broker.send`, of one message; return the receipt for `delete_sent`.

        Raises:
            BrokerError: as `Broker.send`.
        """
        ...

    async def delete_sent(self, entity: EntityPath, receipt: object) -> None:
        """
        Return when the message is deleted. The outcome of a cancelled call is unknown.

        Raises:
            MessageNotFound: it has been received, has expired or was deleted.
            NotAuthorized: the right to receive is missing.
        """
        ...
