"""The memory that messages and settlements take while they wait: more than their bytes."""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.domain.message import (
    Complete,
    Described,
    Message,
    SequenceBody,
    Settlement,
    Typed,
    Value,
    ValueBody,
)
from gateway.wire.amqp.servicebus.settlements import size_of

LEAST_SIZE: Final = 256  # bytes that a message or a settlement takes
_OF_VALUE: Final = 64  # bytes that a value in a list or a map takes: an empty list is one byte
_OF_SECTION: Final = 256


def memory_of_messages(messages: Iterable[Message], size: int) -> int:
    """The memory of messages that have come in one transfer of `size` bytes, about, in bytes."""
    sections = values = 0
    for each in messages:
        sections += len(each.encoded)
        values += sum(map(_values_in, (each.properties, each.annotations, each.footer)))
        if isinstance(each.body, ValueBody):
            values += _values_in(each.body.value)
        elif isinstance(each.body, SequenceBody):
            values += _values_in(each.body.sequences)
    return max(size, LEAST_SIZE) + _OF_SECTION * sections + _OF_VALUE * values


def memory_of_settlement(settlement: Settlement) -> int:
    """
    The memory of a settlement, about, in bytes.

    Raises:
        InvalidRequest: as `size_of`.
    """
    size = max(size_of(settlement), LEAST_SIZE)
    if isinstance(settlement, Complete):
        return size
    return size + _OF_VALUE * _values_in(settlement.properties)


def _values_in(value: Value) -> int:
    """The number of values in a list, a map, an array or a described value, at every depth."""
    if isinstance(value, Described):
        return 2 + _values_in(value.descriptor) + _values_in(value.value)
    if isinstance(value, Typed):
        return _values_in(value.value)
    if isinstance(value, Mapping):
        return 2 * len(value) + sum(map(_values_in, value.values()))
    if isinstance(value, list | tuple):
        return len(value) + sum(map(_values_in, value))
    return 0
