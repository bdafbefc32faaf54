"""A send in progress: its batches, its deadline, and the results of its attempts."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

import attrs
import trio

from gateway.capabilities import Batches, FailsFast, Send, address_of, outcome_of, send_each
from gateway.deadlines import AnswerDeadline, answered_within
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NoAnswer, Outcome, OutcomeUnknown, no_answer
from gateway.domain.message import AcceptedBy, Message, derive_message
from gateway.offering import offered
from gateway.pairing.options import OnUnknown
from gateway.ports import Broker

# Shares of a send's time. After a primary and a first backlog queue that hang, 0.6 * 0.5 of the
# time is left: enough to try another queue and the primary again.
PRIMARY_SHARE: Final = 0.4  # of the time that a send has when it arrives
BACKLOG_SHARE: Final = 0.5  # of the time that is left
SHORTEST_ATTEMPT: Final = 0.001  # seconds: with less left no attempt is begun
SHORT_WAIT: Final = 0.1  # seconds: after less, the time to live isn't adjusted
# A message that expires while its send waits is still handed over, and expires in the namespace.
SHORTEST_LIFE: Final = timedelta(milliseconds=1)  # AMQP's unit


@attrs.define(eq=False)
class Batch:
    """
    A batch of a send: its messages have one verdict, `accepted_by` or `error`.

    A batch is tainted once an attempt had an unknown outcome: from then on it ends as accepted or
    as unknown, never as not sent.
    """

    messages: Sequence[Message]
    accepted_by: AcceptedBy | None = attrs.field(default=None, init=False)
    error: BrokerError | None = attrs.field(default=None, init=False)  # for the caller
    tainted: bool = attrs.field(default=False, init=False)
    errors: dict[AcceptedBy, BrokerError] = attrs.field(
        factory=dict, init=False
    )  # the last error of each
    fault: BrokerError | None = attrs.field(default=None, init=False)  # the backlog's refusal

    @property
    def is_pending(self) -> bool:
        """True as long as the batch has no verdict."""
        return self.accepted_by is None and self.error is None

    def copy_verdict(self, whole: "Batch") -> None:
        """End the batch with the verdict of `whole`, in which its messages were sent."""
        self.accepted_by, self.error = whole.accepted_by, whole.error

    def fail(self, error: BrokerError) -> None:
        """End the batch with that error, or with `OutcomeUnknown` if it is tainted."""
        if self.tainted and error.outcome is Outcome.NOT_SENT:
            self.error = OutcomeUnknown(
                f"an earlier attempt has an unknown outcome; the last attempt: {error}"
            )
        else:
            self.error = error


class SecondCopy(Protocol):
    """
    A send's second copy, which goes to the backlog if the primary is late.

    The send's first success is its verdict, and the other copy is cancelled.
    """

    after: float  # seconds without an answer of the primary, until `begin` is called
    delivered: bool  # the backlog accepted the copy
    refused: bool  # set by the sender: the primary has refused the send, for certain

    def expect(self) -> None:
        """The primary was asked: `begin` may be called soon."""
        ...

    def begin(self, nursery: trio.Nursery, then: Callable[[], object], *, in_doubt: bool) -> None:
        """
        Send the copy in the nursery, unless there were too many; call `then` once the backlog has
        accepted it. With `in_doubt` the send's entity isn't known to be healthy.
        """
        ...

    def accepted_by_primary(self) -> None:
        """The primary has accepted the send, whatever the copy comes to."""
        ...

    async def wait(self) -> bool:
        """Return whether the backlog accepted the copy, once that is known; at once without one."""
        ...

    def cancel(self) -> None:
        """Cancel the copy."""
        ...


@attrs.define(eq=False, kw_only=True)
class Sending:
    """
    A call of `PairedBroker.send` or `send_many`. Its batches share the deadline and each decision
    where to send; each has its own verdict.
    """

    entity: EntityPath
    batches: Sequence[Batch]
    taken: Now  # when the gateway got them: their time to live runs from then on
    deadline: float
    attempt_timeout: float
    on_unknown: OnUnknown
    may_divert: bool
    in_order: bool = False  # later calls don't overtake it, as in `SendsMany.send_many`
    is_for_primary_alone: bool = False  # too large to be diverted, so no attempt is cut short
    second: SecondCopy | None = None  # None: there is none
    copy_of: SecondCopy | None = None  # the second copy that this is
    primary_seconds: float = attrs.field(init=False)  # the time for an attempt on the primary
    primary_asked: bool = attrs.field(default=False, init=False)
    backlog_hangs: bool = attrs.field(default=False, init=False)  # an attempt had no answer

    def __attrs_post_init__(self) -> None:
        self.primary_seconds = min(self.attempt_timeout, self.left * PRIMARY_SHARE)

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0: it has passed, as it may while a send awaits its turn."""
        return max(0.0, self.deadline - trio.current_time())

    @property
    def backlog_seconds(self) -> float:
        """Seconds for the next attempt on the backlog or the spool."""
        return min(self.attempt_timeout, self.left * BACKLOG_SHARE)

    @property
    def pending(self) -> list[Batch]:
        """The batches without a verdict."""
        return [batch for batch in self.batches if batch.is_pending]

    def in_doubt(self, batch: Batch) -> bool:
        """True if another attempt to send the batch may have been accepted as well."""
        return batch.tainted or (self.copy_of is not None and not self.copy_of.refused)

    def handed_over(self, batch: Batch) -> Sequence[Message]:
        """The messages for an attempt that begins now, with the remaining time to live."""
        waited = trio.current_time() - self.taken.monotonic
        if waited < SHORT_WAIT:
            return batch.messages
        return [self._aged(message, timedelta(seconds=waited)) for message in batch.messages]

    def _aged(self, message: Message, waited: timedelta) -> Message:
        life = message.time_to_live
        if life is None:
            return message
        if message.scheduled is not None:  # its time to live starts at that date
            waited -= max(message.scheduled - to_date(self.taken.earliest), timedelta(0))
        left = max(life - max(waited, timedelta(0)), min(life, SHORTEST_LIFE))
        return derive_message(message, time_to_live=left)

    def failed(
        self, batch: Batch, error: BrokerError, accepted_by: AcceptedBy = AcceptedBy.PRIMARY
    ) -> None:
        """Record an attempt's error; an unknown one ends the batch if `on_unknown` is to raise."""
        batch.errors[accepted_by] = error
        if error.outcome is Outcome.UNKNOWN:
            batch.tainted = True
            if self.on_unknown is OnUnknown.RAISE:
                batch.fail(error)

    def fail(self, error: BrokerError) -> None:
        """End all pending batches with that error."""
        for batch in self.pending:
            batch.fail(error)


async def send_in_time(
    broker: Broker, entity: EntityPath, messages: Sequence[Message], seconds: float
) -> None:
    """
    Return once the broker has accepted the messages.

    Raises:
        BrokerError: as `Broker.send`; `NoAnswer` after `seconds` without an answer.
    """
    with time_limit(broker, entity, seconds):
        await broker.send(entity, messages)


async def send_each_in_time(
    broker: Broker,
    entity: EntityPath,
    batches: Batches,
    limit: AnswerDeadline,
    *,
    has_other_way: bool,
    in_order: bool = False,
) -> Sequence[BrokerError | None]:
    """
    As `send_in_time`, but return a verdict for each batch: None, or the error. `limit` is a
    `time_limit`.

    With `has_other_way`, a broker that couldn't be connected to a moment ago may fail without
    connecting again. With `in_order` later calls don't overtake this one, if the namespace has
    `SendsMany`.
    """
    try:
        with limit:
            if in_order or len(batches) != 1:
                return await send_each(broker, entity, batches, fails_fast=has_other_way)
            return [await outcome_of(_way(broker, has_other_way), entity, batches[0])]
    except NoAnswer as error:
        return [error] * len(batches)


def _way(broker: Broker, has_other_way: bool) -> Send[None]:
    fails_fast = offered(broker, FailsFast) if has_other_way else None
    return broker.send if fails_fast is None else fails_fast.try_send


def time_limit(broker: Broker, entity: EntityPath, seconds: float) -> AnswerDeadline:
    """A context for one attempt that raises `NoAnswer` after that many seconds, from now on."""
    return answered_within(seconds, f"from {entity}", at=address_of(broker), error=NoAnswer)


def unanswered(broker: Broker, entity: EntityPath, seconds: float) -> NoAnswer:
    """The error of a send without an answer in time: the broker may have the messages."""
    return no_answer(address_of(broker), str(entity), seconds)
