"""Answers from memory: a broker says so, and a front end marks the answer for its client."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import attrs


@attrs.define
class AnswerSource:
    """Where an answer is from."""

    from_memory: bool = False  # the namespace couldn't be asked


_source: Final[ContextVar[AnswerSource | None]] = ContextVar("answer_source", default=None)


@contextmanager
def answer_source() -> Iterator[AnswerSource]:
    """The source of the answer that is found in this context."""
    found = AnswerSource()
    token = _source.set(found)
    try:
        yield found
    finally:
        _source.reset(token)


def record_from_memory() -> None:
    """Record that the answer of this context is from memory."""
    found = _source.get()
    if found is not None:
        found.from_memory = True
