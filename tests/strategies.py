"""Hypothesis strategies for the values that several tests generate."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.domain.message import (
    DataBody,
    Described,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)

_RANGES = {
    Kind.UBYTE: (0, 2**8 - 1),
    Kind.USHORT: (0, 2**16 - 1),
    Kind.UINT: (0, 2**32 - 1),
    Kind.ULONG: (0, 2**64 - 1),
    Kind.BYTE: (-(2**7), 2**7 - 1),
    Kind.SHORT: (-(2**15), 2**15 - 1),
    Kind.INT: (-(2**31), 2**31 - 1),
}
_OPAQUE = {Kind.DECIMAL32: 4, Kind.DECIMAL64: 8, Kind.DECIMAL128: 16}
_BEFORE_DATETIME = -62_135_596_800_001  # milliseconds
_AFTER_DATETIME = 253_402_300_800_000

# Mostly short, now and then too long for a size of one byte.
_text = st.text(max_size=20) | st.integers(250, 300).map(lambda size: "x" * size)
_names = st.text(max_size=12)
_ascii = st.text(st.characters(max_codepoint=127), max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)


def _to_millisecond(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000, fold=0)


def moments() -> st.SearchStrategy[datetime]:
    """UTC datetimes of whole milliseconds, as in AMQP."""
    return st.datetimes(timezones=st.just(UTC)).map(_to_millisecond)


def amqp_timestamps() -> st.SearchStrategy[Any]:
    beyond = st.integers(-(2**63), _BEFORE_DATETIME) | st.integers(_AFTER_DATETIME, 2**63 - 1)
    return moments() | beyond.map(lambda milliseconds: Typed(Kind.TIMESTAMP, milliseconds))


def _numbers(kind: Kind) -> st.SearchStrategy[Any]:
    low, high = _RANGES[kind]
    edges = st.sampled_from([low, 0, 1, 127, high])
    return (edges | st.integers(low, high)).map(lambda value: Typed(kind, value))


def _opaque(kind: Kind) -> st.SearchStrategy[Any]:
    size = _OPAQUE[kind]
    return st.binary(min_size=size, max_size=size).map(lambda value: Typed(kind, value))


_symbols = _ascii.map(symbol)
_floats = st.floats(allow_nan=False)
_chars = st.characters(exclude_categories=["Cs"]).map(lambda text: Typed(Kind.CHAR, text))
_singles = st.floats(width=32, allow_nan=False).map(lambda value: Typed(Kind.FLOAT, value))
_binaries = st.binary(max_size=20) | st.binary(min_size=256, max_size=260)

# One strategy for each type, since the elements of an array are all of one.
_ONE_TYPE: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    st.integers(-130, 130) | longs,
    _floats,
    _text,
    _binaries,
    st.uuids(),
    amqp_timestamps(),
    _symbols,
    _chars,
    _singles,
    *map(_numbers, _RANGES),
    *map(_opaque, _OPAQUE),
]


def amqp_scalars() -> st.SearchStrategy[Any]:
    """Every primitive type but list, map and array. No NaN, which equals nothing."""
    return st.one_of(_ONE_TYPE)


def _array(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(elements, max_size=6).map(lambda items: Typed(Kind.ARRAY, tuple(items)))


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_names | _symbols | st.uuids(), inner, max_size=4),
        st.builds(Described, _symbols | _numbers(Kind.ULONG), inner),
        st.sampled_from(_ONE_TYPE).flatmap(_array),
        _array(st.lists(inner, max_size=3)),
        _array(st.dictionaries(_names, inner, max_size=3)),
        st.tuples(_symbols, st.sampled_from(_ONE_TYPE)).flatmap(
            lambda pair: _array(st.builds(Described, st.just(pair[0]), pair[1]))
        ),
        _array(_array(longs)),
    )


def amqp_values() -> st.SearchStrategy[Any]:
    """Every AMQP value, nested a little, as `gateway.domain.message.Kind` represents it."""
    return st.recursive(amqp_scalars(), _containers, max_leaves=8)


_VALUES = amqp_values()
_SCALARS = amqp_scalars()
_IDS = _text | st.uuids() | _binaries | _numbers(Kind.ULONG)
_LONGEST = timedelta.max // timedelta(milliseconds=1)
_LIVES = (st.integers(0, 10**10) | st.integers(0, _LONGEST)).map(
    lambda milliseconds: timedelta(milliseconds=milliseconds)
)
_BODIES = st.one_of(
    _binaries,
    st.lists(_binaries, min_size=2, max_size=3).map(lambda parts: DataBody(tuple(parts))),
    st.lists(st.lists(_SCALARS, max_size=2).map(tuple), min_size=1, max_size=2).map(
        lambda items: SequenceBody(tuple(items))
    ),
    _VALUES.map(ValueBody),
)
_ANNOTATIONS = st.dictionaries(_ascii, _SCALARS, max_size=2)

# The values of each field, except None.
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "message_id": _IDS,
    "body": _BODIES,
    "properties": st.dictionaries(_names, _VALUES, max_size=3),
    "correlation_id": _IDS,
    "session_id": _text,
    "subject": _text,
    "to": _text,
    "reply_to": _text,
    "reply_to_session_id": _text,
    "content_type": _ascii,
    "content_encoding": _ascii,
    "user_id": _binaries,
    "absolute_expiry": amqp_timestamps(),
    "creation_time": moments(),
    "group_sequence": st.integers(0, 2**32 - 1),
    "time_to_live": _LIVES,
    "durable": st.booleans(),
    "priority": st.integers(0, 255),
    "scheduled": moments(),
    "partition_key": _text,
    "annotations": _ANNOTATIONS,
    "footer": _ANNOTATIONS,
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Messages of all shapes. Each has a few of the fields, so that generating stays quick."""
    names = draw(st.lists(st.sampled_from(list(_FIELDS)), max_size=6, unique=True))
    if "time_to_live" in names and "absolute_expiry" in names:
        names.remove("absolute_expiry")  # two ways to say one thing; here they would disagree
    return Message(**{name: draw(_FIELDS[name]) for name in names})


def drawn_messages(number: int) -> list[Message]:
    """As many messages of all shapes, the same in each run."""
    found: list[Message] = []

    @settings(
        max_examples=number,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages())
    def collect(message: Message) -> None:
        found.append(message)

    collect()
    return found
