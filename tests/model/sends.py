"""The steps of one producer's send: through the gateway, to a broker, and its answer back."""

from collections.abc import Iterator
from typing import Final

from tests.model.protocol import FREE, Design, Message, Send, SendStep, Step, arrived

ASKED: Final = frozenset({Send.PRIMARY_ASKED, Send.BACKLOG_ASKED})
APPLIED: Final = frozenset({Send.PRIMARY_APPLIED, Send.BACKLOG_APPLIED})
AT_PRIMARY: Final = frozenset({Send.PRIMARY_ASKED, Send.PRIMARY_APPLIED})

# Where nothing but this can follow.
PLAIN: Final[dict[Send, tuple[tuple[Step, Send], ...]]] = {
    Send.IDLE: ((Step.INVOKE, Send.OPEN),),
    Send.OPEN: ((Step.ASK_PRIMARY, Send.PRIMARY_ASKED), (Step.ASK_BACKLOG, Send.BACKLOG_ASKED)),
    Send.PRIMARY_APPLIED: ((Step.PRIMARY_ACCEPTS, Send.TAKEN),),
    Send.BACKLOG_APPLIED: ((Step.BACKLOG_ACCEPTS, Send.TAKEN),),
    Send.TAKEN: ((Step.ANSWER_ACKED, Send.ACKED),),
}


def send_steps(message: Message, design: Design) -> Iterator[SendStep]:
    """Yield the next steps of that message's send, and the troubles that may hit it."""
    for step, after in PLAIN.get(message.send, ()):
        yield step, message._replace(send=after), 0
    if message.send is Send.OPEN:
        step, after = _answer(message, design)
        yield step, message._replace(send=after), 0
    elif message.send in ASKED:
        yield Step.APPLY, _applied(message), 0
        yield _refused(message, design)
    if Send.OPEN <= message.send <= Send.TAKEN:
        yield from _troubles(message, design)


def late_steps(message: Message) -> Iterator[SendStep]:
    """A request is applied whose sender doesn't wait any more."""
    if message.late_primary:
        fewer = message._replace(late_primary=message.late_primary - 1)
        yield Step.LATE_ARRIVES, arrived(fewer), 0
    if message.late_backlog:
        copies = (*message.copies, FREE)
        stored = message._replace(late_backlog=message.late_backlog - 1, copies=copies)
        yield Step.LATE_ARRIVES, stored, 0


def _answer(message: Message, design: Design) -> tuple[Step, Send]:
    """The gateway gives up; its possible answers depend on whether any attempt had no answer."""
    if design.acks_early:
        return Step.ANSWER_ACKED, Send.ACKED
    if message.tainted:
        return Step.ANSWER_UNKNOWN, Send.UNKNOWN
    return Step.ANSWER_FAILED, Send.FAILED


def _applied(message: Message) -> Message:
    if message.send in AT_PRIMARY:
        return arrived(message)._replace(send=Send.PRIMARY_APPLIED)
    return message._replace(send=Send.BACKLOG_APPLIED, copies=(*message.copies, FREE))


def _refused(message: Message, design: Design) -> SendStep:
    step = Step.PRIMARY_REFUSES if message.send in AT_PRIMARY else Step.BACKLOG_REFUSES
    tainted = message.tainted and not design.forgets_the_taint
    return step, message._replace(send=Send.OPEN, tainted=tainted), 0


def _troubles(message: Message, design: Design) -> Iterator[SendStep]:
    left = _left_behind(message)
    if message.send in ASKED | APPLIED:
        step = Step.PRIMARY_UNKNOWN if message.send in AT_PRIMARY else Step.BACKLOG_UNKNOWN
        tainted = message.tainted or not design.unknown_is_not_sent
        yield step, left._replace(send=Send.OPEN, tainted=tainted), 1
    yield Step.KILL_GATEWAY, left._replace(send=Send.UNKNOWN), 1


def _left_behind(message: Message) -> Message:
    """
    Leave the attempt: a request that wasn't applied yet is late, and its answer isn't awaited.
    """
    left = message._replace(allowed=message.allowed + 1)
    if message.send is Send.PRIMARY_ASKED:
        return left._replace(late_primary=message.late_primary + 1)
    if message.send is Send.BACKLOG_ASKED:
        return left._replace(late_backlog=message.late_backlog + 1)
    return left
