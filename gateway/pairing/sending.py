"""One send on its way: its deadline, and what it has learnt."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import FailsFast
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown
from gateway.domain.message import Message
from gateway.pairing.options import OnUnknown
from gateway.ports import Broker

PRIMARY_SHARE: Final = 0.4  # of the time that a send has when it arrives
BACKLOG_SHARE: Final = 0.5  # of the time that is left
SHORTEST_ATTEMPT: Final = 0.001  # seconds: with less left no attempt is begun


@attrs.define(eq=False, kw_only=True)
class Sending:
    """
    One call of `PairedBroker.send`.

    It is tainted once an attempt had an unknown outcome: from then on it can end as accepted or
    as unknown, never as not sent.
    """

    entity: EntityPath
    messages: Sequence[Message]
    deadline: float
    attempt_timeout: float
    on_unknown: OnUnknown
    may_divert: bool
    primary_seconds: float = attrs.field(init=False)  # the primary's share
    tainted: bool = attrs.field(default=False, init=False)
    primary_asked: bool = attrs.field(default=False, init=False)
    backlog_hangs: bool = attrs.field(default=False, init=False)  # an attempt had no answer
    error: BrokerError | None = attrs.field(default=None, init=False)  # the last one
    fault: BrokerError | None = attrs.field(default=None, init=False)  # that the backlog found

    def __attrs_post_init__(self) -> None:
        self.primary_seconds = min(self.attempt_timeout, self.left * PRIMARY_SHARE)

    @property
    def left(self) -> float:
        return self.deadline - trio.current_time()

    @property
    def backlog_seconds(self) -> float:
        """How long the next attempt beside the primary may take."""
        return min(self.attempt_timeout, self.left * BACKLOG_SHARE)

    def failed(self, error: BrokerError) -> None:
        """
        Remember an attempt's error.

        Raises:
            OutcomeUnknown: the outcome is unknown, and the caller wants to hear that at once.
        """
        self.error = error
        if error.outcome is Outcome.UNKNOWN:
            self.tainted = True
            if self.on_unknown is OnUnknown.RAISE:
                raise error

    def verdict(self, error: BrokerError) -> BrokerError:
        """The error for the caller."""
        if self.tainted and error.outcome is Outcome.NOT_SENT:
            return OutcomeUnknown(f"an earlier attempt has no answer; the last one: {error}")
        return error


async def send_in_time(
    broker: Broker,
    entity: EntityPath,
    messages: Sequence[Message],
    seconds: float,
    has_other_way: bool = False,
) -> None:
    """
    Return once the broker owns the messages. With `has_other_way` a broker that couldn't be
    connected to a moment ago may say so without connecting again.

    Raises:
        BrokerError: the broker's own; `OutcomeUnknown` when the time was over first.
    """
    with trio.move_on_after(max(seconds, 0.0)) as scope:
        if has_other_way and isinstance(broker, FailsFast):
            await broker.try_send(entity, messages)
        else:
            await broker.send(entity, messages)
    if scope.cancelled_caught:
        raise unanswered(entity, seconds)


def unanswered(entity: EntityPath, seconds: float) -> OutcomeUnknown:
    """It may have the messages: we only know that we stopped waiting."""
    return OutcomeUnknown(f"no answer from {entity} within {seconds:.3g} s")
