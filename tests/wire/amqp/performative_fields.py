"""The fields of each performative of AMQP 1.0 (part 2, 2.7), by name, with their types."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.domain.message import Described, Kind, Typed, Value, symbol
from gateway.wire.amqp.performatives import described
from gateway.wire.amqp.types import decode_at, encode

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
MIN_MAX_FRAME_SIZE: Final = 512  # 2.8.19
AMQP, SASL = 0, 1  # types of frames

_UINT, _USHORT, _UBYTE, _ULONG = Kind.UINT, Kind.USHORT, Kind.UBYTE, Kind.ULONG


class Field(NamedTuple):
    name: str
    kind: Kind | type
    mandatory: bool = False
    multiple: bool = False


class Performative(NamedTuple):
    name: str
    code: int
    fields: tuple[Field, ...]


_CAPABILITIES: Final = (
    Field("offered_capabilities", Kind.SYMBOL, multiple=True),
    Field("desired_capabilities", Kind.SYMBOL, multiple=True),
    Field("properties", dict),
)

PERFORMATIVES: Final = (
    Performative(
        "open",
        0x10,
        (
            Field("container_id", str, mandatory=True),
            Field("hostname", str),
            Field("max_frame_size", _UINT),
            Field("channel_max", _USHORT),
            Field("idle_time_out", _UINT),
            Field("outgoing_locales", Kind.SYMBOL, multiple=True),
            Field("incoming_locales", Kind.SYMBOL, multiple=True),
            *_CAPABILITIES,
        ),
    ),
    Performative(
        "begin",
        0x11,
        (
            Field("remote_channel", _USHORT),
            Field("next_outgoing_id", _UINT, mandatory=True),
            Field("incoming_window", _UINT, mandatory=True),
            Field("outgoing_window", _UINT, mandatory=True),
            Field("handle_max", _UINT),
            *_CAPABILITIES,
        ),
    ),
    Performative(
        "attach",
        0x12,
        (
            Field("name", str, mandatory=True),
            Field("handle", _UINT, mandatory=True),
            Field("role", bool, mandatory=True),
            Field("snd_settle_mode", _UBYTE),
            Field("rcv_settle_mode", _UBYTE),
            Field("source", Described),
            Field("target", Described),
            Field("unsettled", dict),
            Field("incomplete_unsettled", bool),
            Field("initial_delivery_count", _UINT),
            Field("max_message_size", _ULONG),
            *_CAPABILITIES,
        ),
    ),
    Performative(
        "flow",
        0x13,
        (
            Field("next_incoming_id", _UINT),
            Field("incoming_window", _UINT, mandatory=True),
            Field("next_outgoing_id", _UINT, mandatory=True),
            Field("outgoing_window", _UINT, mandatory=True),
            Field("handle", _UINT),
            Field("delivery_count", _UINT),
            Field("link_credit", _UINT),
            Field("available", _UINT),
            Field("drain", bool),
            Field("echo", bool),
            Field("properties", dict),
        ),
    ),
    Performative(
        "transfer",
        0x14,
        (
            Field("handle", _UINT, mandatory=True),
            Field("delivery_id", _UINT),
            Field("delivery_tag", bytes),
            Field("message_format", _UINT),
            Field("settled", bool),
            Field("more", bool),
            Field("rcv_settle_mode", _UBYTE),
            Field("state", Described),
            Field("resume", bool),
            Field("aborted", bool),
            Field("batchable", bool),
        ),
    ),
    Performative(
        "disposition",
        0x15,
        (
            Field("role", bool, mandatory=True),
            Field("first", _UINT, mandatory=True),
            Field("last", _UINT),
            Field("settled", bool),
            Field("state", Described),
            Field("batchable", bool),
        ),
    ),
    Performative(
        "detach",
        0x16,
        (
            Field("handle", _UINT, mandatory=True),
            Field("closed", bool),
            Field("error", Described),
        ),
    ),
    Performative("end", 0x17, (Field("error", Described),)),
    Performative("close", 0x18, (Field("error", Described),)),
    Performative(
        "sasl-mechanisms",
        0x40,
        (Field("sasl_server_mechanisms", Kind.SYMBOL, mandatory=True, multiple=True),),
    ),
    Performative(
        "sasl-init",
        0x41,
        (
            Field("mechanism", Kind.SYMBOL, mandatory=True),
            Field("initial_response", bytes),
            Field("hostname", str),
        ),
    ),
    Performative("sasl-challenge", 0x42, (Field("challenge", bytes, mandatory=True),)),
    Performative("sasl-response", 0x43, (Field("response", bytes, mandatory=True),)),
    Performative(
        "sasl-outcome",
        0x44,
        (Field("code", _UBYTE, mandatory=True), Field("additional_data", bytes)),
    ),
)
BY_NAME: Final = {each.name: each for each in PERFORMATIVES}
BY_CODE: Final = {each.code: each for each in PERFORMATIVES}


class Frame(NamedTuple):
    """A frame that was taken apart."""

    kind: str  # the name of its performative; "" for a heartbeat
    channel: int
    fields: Mapping[str, Any]  # without types; those that are missing are None
    payload: bytes
    size: int

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


def body(kind: str, /, **fields: Any) -> bytes:
    """The encoded performative. A value of a wrong type is written as it is."""
    performative = BY_NAME[kind]
    values = [_typed(each, fields.pop(each.name, None)) for each in performative.fields]
    assert not fields, f"{kind} has no {', '.join(fields)}"
    while values and values[-1] is None:
        values.pop()
    return encode(described(performative.code, values))


def frame(kind: str, /, *, channel: int = 0, payload: bytes = b"", **fields: Any) -> bytes:
    type_code = SASL if kind.startswith("sasl") else AMQP
    return raw_frame(body(kind, **fields) + payload, type_code=type_code, channel=channel)


def raw_frame(
    content: bytes, *, type_code: int = AMQP, channel: int = 0, extended: bytes = b""
) -> bytes:
    """A frame of any content, with an extended header of whole words."""
    words = 2 + len(extended) // 4
    size = 8 + len(extended) + len(content)
    return size.to_bytes(4) + bytes((words, type_code)) + channel.to_bytes(2) + extended + content


EMPTY: Final = raw_frame(b"")


def parse(data: bytes) -> tuple[list[Frame], bytes]:
    """
    The whole frames in `data`, and the rest.

    Raises:
        AssertionError: a frame has a wrong type or data offset, or lacks a mandatory field.
    """
    frames, at = [], 0
    while len(data) - at >= 8:
        size = int.from_bytes(data[at : at + 4])
        assert size >= 8, f"a frame of {size} bytes"
        if len(data) - at < size:
            break
        frames.append(_parse(data[at : at + size]))
        at += size
    return frames, data[at:]


def _parse(data: bytes) -> Frame:
    words, type_code, channel = data[4], data[5], int.from_bytes(data[6:8])
    start = 4 * words
    assert words >= 2, f"a data offset of {words}"
    assert start <= len(data), "the body starts after the end"
    if start == len(data):
        assert type_code == AMQP, "an empty frame of SASL"
        return Frame("", channel, {}, b"", len(data))
    value, end = decode_at(data, start)
    performative = BY_CODE[value.descriptor.value]
    of_sasl = performative.name.startswith("sasl")
    assert of_sasl == (type_code == SASL), f"{performative.name} in a frame of type {type_code}"
    payload = data[end:]
    assert not payload or performative.name == "transfer", f"{performative.name} with a payload"
    assert len(value.value) <= len(performative.fields), f"{performative.name} has too many fields"
    values = [*value.value, *[None] * (len(performative.fields) - len(value.value))]
    fields = {
        field.name: _plain(performative.name, field, each)
        for field, each in zip(performative.fields, values, strict=True)
    }
    return Frame(performative.name, channel, fields, payload, len(data))


def _typed(field: Field, value: Any) -> Value:
    if field.multiple and isinstance(value, tuple):
        return Typed(Kind.ARRAY, tuple(_one(field, each) for each in value))
    return _one(field, value)


def _one(field: Field, value: Any) -> Value:
    plain = str if field.kind is Kind.SYMBOL else int
    if isinstance(field.kind, Kind) and type(value) is plain:
        return Typed(field.kind, value)
    if field.name == "properties" and isinstance(value, dict):
        return {symbol(key) if isinstance(key, str) else key: each for key, each in value.items()}
    return value


def _plain(name: str, field: Field, value: Value) -> Any:
    where = f"{name}.{field.name}: {value!r}"
    if value is None:
        assert not field.mandatory, f"{where}, which is mandatory"
        return None
    if field.multiple and isinstance(value, Typed) and value.kind is Kind.ARRAY:
        assert value.value or not field.mandatory, f"{where}, which is mandatory"
        return tuple(_plain_one(where, field, each) for each in value.value)
    return _plain_one(where, field, value)


def _plain_one(where: str, field: Field, value: Value) -> Any:
    if isinstance(field.kind, Kind):
        assert isinstance(value, Typed), where
        assert value.kind is field.kind, where
        return value.value
    assert type(value) is field.kind, where
    if field.name in ("properties", "unsettled"):
        return {getattr(key, "value", key): each for key, each in value.items()}
    return value


def error_of(value: Described | None) -> str | None:
    """The condition of an error (2.8.14)."""
    if value is None:
        return None
    assert value.descriptor == Typed(Kind.ULONG, 0x1D)
    condition = value.value[0]
    assert isinstance(condition, Typed)
    assert condition.kind is Kind.SYMBOL
    return str(condition.value)


def error(condition: str, description: str = "") -> Described:
    return described(0x1D, [symbol(condition), description])
