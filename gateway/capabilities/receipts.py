"""Receipts of sends: a namespace says how its message is found, a front end tells its client."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import attrs


@attrs.define
class SentMessage:
    """A sent message, as far as its namespace has said how it is found again."""

    token: bytes | None = None  # as `SettlesByToken.hand_out`


_sent: Final[ContextVar[SentMessage | None]] = ContextVar("sent_message", default=None)


@contextmanager
def sent_message() -> Iterator[SentMessage]:
    """The message that is sent in this context, one alone."""
    found = SentMessage()
    reset = _sent.set(found)
    try:
        yield found
    finally:
        _sent.reset(reset)


def record_sent(token: bytes | None) -> None:
    """Record the token of the message of this context, which the namespace has just accepted."""
    found = _sent.get()
    if found is not None:
        found.token = token
