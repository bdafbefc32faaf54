"""One send in progress: its deadline, and the results of its attempts."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import attrs
import trio

from gateway.capabilities import FailsFast, address_of
from gateway.deadlines import AnswerDeadline, answered_within
from gateway.domain.clocks.times import Now, to_date
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, NoAnswer, Outcome, OutcomeUnknown, no_answer
from gateway.domain.message import AcceptedBy, Message
from gateway.offering import offered
from gateway.pairing.hedging import Hedge
from gateway.pairing.options import OnUnknown
from gateway.ports import Broker

PRIMARY_SHARE: Final = 0.4  # of the time that a send has when it arrives
BACKLOG_SHARE: Final = 0.5  # of the time that is left
SHORTEST_ATTEMPT: Final = 0.001  # seconds: with less left no attempt is begun
SHORT_WAIT: Final = 0.1  # seconds: after less, the time to live isn't adjusted
# A message that expires while its send waits is still handed over, and expires in the namespace.
SHORTEST_LIFE: Final = timedelta(milliseconds=1)  # AMQP's unit


@attrs.define(eq=False, kw_only=True)
class Sending:
    """
    One call of `PairedBroker.send`.

    A send is tainted once an attempt had an unknown outcome: from then on it ends as accepted or as
    unknown, never as not sent.
    """

    entity: EntityPath
    messages: Sequence[Message]
    taken: Now  # when the gateway got them: their time to live runs from then on
    deadline: float
    attempt_timeout: float
    on_unknown: OnUnknown
    may_divert: bool
    hedge: Hedge | None = None  # None: the send isn't hedged
    copy_of: Hedge | None = None  # the hedge whose second copy this is
    primary_seconds: float = attrs.field(init=False)  # the time for an attempt on the primary
    tainted: bool = attrs.field(default=False, init=False)
    primary_asked: bool = attrs.field(default=False, init=False)
    backlog_hangs: bool = attrs.field(default=False, init=False)  # an attempt had no answer
    errors: dict[AcceptedBy, BrokerError] = attrs.field(
        factory=dict, init=False
    )  # the last error of each
    fault: BrokerError | None = attrs.field(default=None, init=False)  # the backlog's refusal

    def __attrs_post_init__(self) -> None:
        self.primary_seconds = min(self.attempt_timeout, self.left * PRIMARY_SHARE)

    @property
    def left(self) -> float:
        return self.deadline - trio.current_time()

    @property
    def backlog_seconds(self) -> float:
        """Seconds for the next attempt on the backlog or the spool."""
        return min(self.attempt_timeout, self.left * BACKLOG_SHARE)

    @property
    def in_doubt(self) -> bool:
        """True if another attempt of this send may have been accepted as well."""
        return self.tainted or (self.copy_of is not None and not self.copy_of.refused)

    def handed_over(self) -> Sequence[Message]:
        """The messages for an attempt that begins now, with the remaining time to live."""
        waited = trio.current_time() - self.taken.monotonic
        if waited < SHORT_WAIT:
            return self.messages
        return [self._aged(message, timedelta(seconds=waited)) for message in self.messages]

    def _aged(self, message: Message, waited: timedelta) -> Message:
        life = message.time_to_live
        if life is None:
            return message
        if message.scheduled is not None:  # its time to live starts at that date
            waited -= max(message.scheduled - to_date(self.taken.earliest), timedelta(0))
        left = max(life - max(waited, timedelta(0)), min(life, SHORTEST_LIFE))
        return attrs.evolve(message, time_to_live=left)

    def failed(self, error: BrokerError, accepted_by: AcceptedBy = AcceptedBy.PRIMARY) -> None:
        """
        Record an attempt's error.

        Raises:
            OutcomeUnknown: the outcome is unknown, and `on_unknown` is to raise.
        """
        self.errors[accepted_by] = error
        if error.outcome is Outcome.UNKNOWN:
            self.tainted = True
            if self.on_unknown is OnUnknown.RAISE:
                raise error

    def verdict(self, error: BrokerError) -> BrokerError:
        """The error for the caller."""
        if self.tainted and error.outcome is Outcome.NOT_SENT:
            return OutcomeUnknown(
                f"an earlier attempt has an unknown outcome; the last attempt: {error}"
            )
        return error


async def send_in_time(
    broker: Broker,
    entity: EntityPath,
    messages: Sequence[Message],
    seconds: float,
    has_other_way: bool = False,
) -> None:
    """
    Return once the broker has accepted the messages. With `has_other_way`, a broker that couldn't
    be connected to a moment ago may fail without connecting again.

    Raises:
        BrokerError: as `Broker.send`; `NoAnswer` after `seconds` without an answer.
    """
    with time_limit(broker, entity, seconds):
        await send(broker, entity, messages, has_other_way)


def time_limit(broker: Broker, entity: EntityPath, seconds: float) -> AnswerDeadline:
    """A context for one attempt that raises `NoAnswer` after that many seconds, from now on."""
    return answered_within(seconds, f"from {entity}", at=address_of(broker), error=NoAnswer)


async def send(
    broker: Broker, entity: EntityPath, messages: Sequence[Message], has_other_way: bool
) -> None:
    """As `send_in_time`, without a limit."""
    fails_fast = offered(broker, FailsFast) if has_other_way else None
    if fails_fast is not None:
        await fails_fast.try_send(entity, messages)
    else:
        await broker.send(entity, messages)


def unanswered(broker: Broker, entity: EntityPath, seconds: float) -> NoAnswer:
    """The error of a send without an answer in time: the broker may have the messages."""
    return no_answer(address_of(broker), str(entity), seconds)
