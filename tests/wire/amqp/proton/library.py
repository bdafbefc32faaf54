"""
The functions of Qpid Proton's C library that `engine` uses, and conversions between our values and
its structures. Proton's own Python classes take ten times as long per message as the C code.
"""

from collections.abc import Mapping
from typing import Any, Final

from cproton_ffi import ffi
from cproton_ffi import lib as lib

from gateway.domain.message import symbol
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    Accepted,
    AmqpError,
    DeliveryState,
    Modified,
    NewLink,
    OtherState,
    Rejected,
    Released,
    Terminus,
)
from gateway.wire.amqp.performatives import by_name, symbols
from gateway.wire.amqp.types import decode, encode
from tests.wire.amqp.proton.rewriting import SOME_INFO

Pointer = Any  # into Proton's memory; equal and hashed by address

NULL: Final = ffi.NULL

_CODES: Final = {Accepted: 0x24, Rejected: 0x25, Released: 0x26, Modified: 0x27}


def push(transport: Pointer, data: memoryview) -> int:
    """Pass bytes to Proton; return how many it has taken; negative: it takes no more."""
    capacity: int = lib.pn_transport_capacity(transport)
    if capacity <= 0:
        return capacity
    size = min(capacity, len(data))
    pushed: int = lib.pn_transport_push(transport, ffi.from_buffer(data), size)
    return pushed


def pull(transport: Pointer, most: int) -> bytes:
    """Take at most `most` bytes that Proton has written; empty: nothing is written."""
    pending = lib.pn_transport_pending(transport)
    if pending <= 0:
        return b""
    size = min(pending, most)
    buffer = ffi.new("char[]", size)
    lib.pn_transport_peek(transport, buffer, size)
    lib.pn_transport_pop(transport, size)
    return bytes(ffi.buffer(buffer, size))


def text(value: Pointer) -> str:
    """A C string; empty for NULL."""
    return "" if value == NULL else ffi.string(value).decode("utf-8", "replace")


def receive(link: Pointer, delivery: Pointer) -> bytes:
    """The bytes of the link's current delivery that have arrived since the last call."""
    size = lib.pn_delivery_pending(delivery)
    if not size:
        return b""
    buffer = ffi.new("char[]", size)
    lib.pn_link_recv(link, buffer, size)
    return bytes(ffi.buffer(buffer, size))


def tag_of(delivery: Pointer) -> bytes:
    tag = lib.pn_delivery_tag(delivery)
    return bytes(ffi.buffer(tag.start, tag.size)) if tag.size else b""


def send(link: Pointer, tag: bytes, payload: bytes) -> Pointer:
    """Begin and complete a delivery."""
    start = ffi.from_buffer(tag)
    delivery = lib.pn_delivery(link, (len(tag), start))
    lib.pn_link_send(link, ffi.from_buffer(payload), len(payload))
    lib.pn_link_advance(link)
    return delivery


def put(data: Pointer, encoded: bytes) -> None:
    """Set `data` to one encoded value."""
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, encoded, len(encoded))


def symbol_map(mapping: Mapping[str, Any]) -> bytes:
    """The encoded map whose keys are symbols."""
    return encode({symbol(key): value for key, value in mapping.items()})


def put_symbols(data: Pointer, mapping: Mapping[str, Any]) -> None:
    if mapping:
        put(data, symbol_map(mapping))


def get_map(data: Pointer) -> Mapping[str, Any]:
    """
    The map in `data`; empty if there is none.

    Raises:
        MessageError: the map is malformed.
    """
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return {}
    buffer = ffi.new("char[]", size)
    lib.pn_data_encode(data, buffer, size)
    value = decode(bytes(ffi.buffer(buffer, size)))
    return by_name(value) if isinstance(value, dict) else {}


def put_error(condition: Pointer, error: AmqpError | None) -> None:
    if error is None:
        return
    lib.pn_condition_set_name(condition, error.condition.encode())
    lib.pn_condition_set_description(condition, error.description.encode())
    # Never without info: azure-servicebus for Python would wait for ever.
    put(lib.pn_condition_info(condition), symbol_map(error.info or SOME_INFO))


def get_error(condition: Pointer) -> AmqpError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    return AmqpError(
        condition=text(lib.pn_condition_get_name(condition)),
        description=text(lib.pn_condition_get_description(condition)),
        info=get_map(lib.pn_condition_info(condition)),
    )


def put_terminus(terminus: Pointer, kind: int, value: Terminus | None) -> None:
    if value is None:
        return
    lib.pn_terminus_set_type(terminus, lib.PN_COORDINATOR if value.coordinator else kind)
    if value.address is not None:
        lib.pn_terminus_set_address(terminus, value.address.encode())
    lib.pn_terminus_set_dynamic(terminus, value.dynamic)
    lib.pn_terminus_set_durability(terminus, int(value.durable))
    put_symbols(lib.pn_terminus_filter(terminus), value.filters)
    if value.capabilities:
        put(lib.pn_terminus_capabilities(terminus), encode(symbols(value.capabilities)))


def put_state(delivery: Pointer, state: DeliveryState) -> None:
    """Set the delivery's state on our side."""
    disposition = lib.pn_delivery_local(delivery)
    code = state.code if isinstance(state, OtherState) else _CODES[type(state)]
    if isinstance(state, Rejected):
        put_error(lib.pn_disposition_condition(disposition), state.error)
    elif isinstance(state, Modified):
        lib.pn_disposition_set_failed(disposition, state.delivery_failed)
        lib.pn_disposition_set_undeliverable(disposition, state.undeliverable_here)
        put_symbols(lib.pn_disposition_annotations(disposition), state.annotations)
    lib.pn_delivery_update(delivery, code)


def get_state(delivery: Pointer) -> DeliveryState | None:
    """
    The delivery state from the peer.

    Raises:
        MessageError: a part of it is malformed.
    """
    code = lib.pn_delivery_remote_state(delivery)
    if code == 0x24:
        return ACCEPTED
    if code == 0x26:
        return RELEASED
    if code == 0:
        return None
    disposition = lib.pn_delivery_remote(delivery)
    if code == 0x25:
        return Rejected(error=get_error(lib.pn_disposition_condition(disposition)))
    if code == 0x27:
        return Modified(
            delivery_failed=lib.pn_disposition_is_failed(disposition),
            undeliverable_here=lib.pn_disposition_is_undeliverable(disposition),
            annotations=get_map(lib.pn_disposition_annotations(disposition)),
        )
    return OtherState(code=code)


def echo(link: Pointer, *, address: str | None, filters: Mapping[str, Any] | None) -> None:
    """Copy the peer's source, target and settle modes to our end of the link."""
    source, target = lib.pn_link_source(link), lib.pn_link_target(link)
    lib.pn_terminus_copy(source, lib.pn_link_remote_source(link))
    lib.pn_terminus_copy(target, lib.pn_link_remote_target(link))
    lib.pn_link_set_snd_settle_mode(link, lib.pn_link_remote_snd_settle_mode(link))
    lib.pn_link_set_rcv_settle_mode(link, lib.pn_link_remote_rcv_settle_mode(link))
    if address is not None:
        node = source if lib.pn_link_is_sender(link) else target
        lib.pn_terminus_set_address(node, address.encode())
    if filters is not None:
        lib.pn_data_clear(lib.pn_terminus_filter(source))
        put_symbols(lib.pn_terminus_filter(source), filters)


def new_link(session: Pointer, new: NewLink) -> Pointer:
    """Attach a link."""
    make = lib.pn_sender if new.we_send else lib.pn_receiver
    link = make(session, new.name.encode())
    put_terminus(lib.pn_link_source(link), lib.PN_SOURCE, new.source)
    put_terminus(lib.pn_link_target(link), lib.PN_TARGET, new.target)
    lib.pn_link_set_snd_settle_mode(link, int(new.sender_settles))
    lib.pn_link_set_rcv_settle_mode(link, int(new.receiver_settles))
    put_symbols(lib.pn_link_properties(link), new.properties)
    lib.pn_link_set_max_message_size(link, new.max_message_size)
    lib.pn_link_open(link)
    return link


def answer_detach(link: Pointer, *, closed: bool) -> None:
    """Detach our end of a link whose peer has detached its own, and free it."""
    if closed:
        lib.pn_link_close(link)
    else:
        lib.pn_link_detach(link)
    free_link(link)


def free_link(link: Pointer) -> None:
    """Free a link that both ends have detached."""
    # Our detach is written first: freeing settles unsettled deliveries without an outcome, which
    # some clients take for success.
    connection = lib.pn_session_connection(lib.pn_link_session(link))
    lib.pn_transport_pending(lib.pn_connection_transport(connection))
    lib.pn_link_free(link)


def free(transport: Pointer, connection: Pointer, collector: Pointer) -> None:
    """Free all memory of a connection; its pointers become invalid."""
    lib.pn_transport_unbind(transport)
    lib.pn_connection_release(connection)
    lib.pn_collector_release(collector)
    lib.pn_decref(connection)
    lib.pn_decref(transport)
    lib.pn_collector_free(collector)
