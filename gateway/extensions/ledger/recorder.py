"""Records what a namespace answers to each send, and what becomes of messages on the backlog."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import attrs

from gateway.capabilities import sends_in
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope
from gateway.domain.envelope_fields import PATH, VERSION, text_of_id
from gateway.domain.errors import BrokerError, MessageError, Outcome, PartlyAccepted
from gateway.domain.message import Complete, DeadLetter, Message
from gateway.extensions.ledger.facts import LONGEST_ID, LONGEST_WHY, Fact, PairSide, What
from gateway.interception import Call, CallKind, Interceptor
from gateway.ports import WallClock

Identify = Callable[[Message], tuple[str, str] | None]
"""Returns the id and the entity of a diverted message; None: it is none."""
_CANCELLED: Final = "cancelled before the answer"
_WHAT: Final = {Outcome.NOT_SENT: What.NOT_SENT, Outcome.UNKNOWN: What.UNKNOWN}


def identify_with(envelopes: Sequence[Envelope]) -> Identify:
    """
    Tell diverted messages from others, and open those that are encrypted with the first envelope,
    the pair's, which is there before the first message.
    """

    def identify(message: Message) -> tuple[str, str] | None:
        path = message.properties.get(PATH)
        if isinstance(path, str):
            return text_of_id(message.message_id), path
        if VERSION not in message.properties:
            return None
        try:
            opened = envelopes[0].unwrap(message)
        except MessageError:
            return None  # another pair's, or changed: its syphon says so
        return text_of_id(opened.message.message_id), opened.entity.name

    return identify


@attrs.frozen(eq=False)
class Recorder(Interceptor):
    """
    Around one namespace of a pair. `identify` is given at the secondary, where a message has its
    envelope and is settled by a syphon, or by a receiver.
    """

    _record: Callable[[Iterable[Fact]], None]
    _clock: WallClock
    _identify: Identify | None = None

    kinds: ClassVar[frozenset[CallKind]] = frozenset(
        (CallKind.SEND, CallKind.COMMIT, CallKind.SCHEDULE, CallKind.SETTLE)
    )

    def after(self, call: Call, result: Sequence[object] | None) -> None:
        if call.kind is CallKind.SEND and result is not None:
            for batch, verdict in zip(call.batches, result, strict=True):
                self._record_batch(call.entity, batch, verdict)
        elif call.kind is CallKind.SETTLE and result is not None:
            self._record_settled(call, result)
        else:
            self._record_all(call, None)

    def error(self, call: Call, error: BaseException) -> None:
        self._record_all(call, error)

    def _record_all(self, call: Call, verdict: object) -> None:
        for batch in call.batches:
            self._record_batch(call.entity, batch, verdict)
        for each in sends_in(call.work):
            self._record_batch(each.entity, each.messages, verdict)

    def _record_batch(
        self, entity: EntityPath | None, messages: Sequence[Message], verdict: object
    ) -> None:
        if entity is None:
            return
        if isinstance(verdict, PartlyAccepted):
            accepted = [each for each in messages if verdict.has_accepted(each)]
            rest = [each for each in messages if not verdict.has_accepted(each)]
            self._record_batch(entity, accepted, None)
            self._record_batch(entity, rest, verdict.why)
            return
        what, why = _meaning(verdict)
        self._record(
            fact for each in messages if (fact := self._fact(entity, each, what, why)) is not None
        )

    def _record_settled(self, call: Call, result: Sequence[object]) -> None:
        if self._identify is None or call.entity is None:
            return
        for (delivery, settlement), verdict in zip(call.settlements, result, strict=True):
            if isinstance(verdict, BrokerError):
                continue  # the message is delivered again, and then there is another fact
            if isinstance(settlement, Complete):
                what, why = What.COMPLETED, ""
            elif isinstance(settlement, DeadLetter):
                what, why = What.DEAD_LETTERED, f"{settlement.reason}: {settlement.description}"
            else:
                continue
            fact = self._fact(call.entity, delivery.message, what, why)
            if fact is not None:
                self._record([fact])

    def _fact(self, entity: EntityPath, message: Message, what: What, why: str) -> Fact | None:
        if self._identify is None:
            found, queue, side = (text_of_id(message.message_id), entity.name), "", PairSide.PRIMARY
        elif (diverted := self._identify(message)) is not None:
            found, queue, side = diverted, entity.name, PairSide.SECONDARY
        else:
            return None
        return Fact(
            at=self._clock(),
            message=found[0][:LONGEST_ID],
            entity=found[1],
            side=side,
            what=what,
            queue=queue,
            why=why[:LONGEST_WHY],
        )


def _meaning(verdict: object) -> tuple[What, str]:
    if isinstance(verdict, BrokerError):
        return _WHAT[verdict.outcome], f"{type(verdict).__name__}: {verdict}"
    if isinstance(verdict, BaseException):
        return What.UNKNOWN, _CANCELLED
    return What.ACCEPTED, ""
