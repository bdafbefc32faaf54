"""
Equality of messages, changes that invalidate their encoded form, and the names of types and states.
"""

import attrs

from gateway.domain.message import AcceptedBy, EncodedSection, Kind, Message, MessageState
from gateway.domain.values import deriving

READ = Message(message_id="1", body=b"x", encoded=(EncodedSection(0x75, b"\x00Su", b"x"),))
MADE = Message(message_id="1", body=b"x")


def test_a_message_is_the_same_whether_it_was_read_or_made() -> None:
    assert READ == MADE
    assert repr(READ) == repr(MADE)


def written() -> Message:
    """As a codec leaves it."""
    message = attrs.evolve(MADE)
    object.__setattr__(message, "written", (b"x",))
    return message


def test_a_message_is_the_same_when_it_has_been_written() -> None:
    assert MADE.written is None
    assert written() == MADE
    assert repr(written()) == repr(MADE)


def test_a_changed_message_is_written_anew() -> None:
    assert attrs.evolve(written(), body=b"y").written is None


def test_a_derived_message_is_an_evolved_one() -> None:
    fields = [field for field in attrs.fields(Message) if field.init]
    full = Message(**{field.name: object() for field in fields})
    object.__setattr__(full, "written", (b"x",))

    derived = deriving(Message)(full, body=b"y")

    evolved = attrs.evolve(full, body=b"y")
    for field in attrs.fields(Message):
        assert getattr(derived, field.name) is getattr(evolved, field.name)


def test_a_message_that_says_nothing_has_an_empty_body_and_no_properties() -> None:
    message = Message()

    assert message.body == b""
    assert (message.properties, message.annotations, message.footer) == ({}, {}, {})


def test_a_type_is_called_as_amqp_calls_it() -> None:
    assert [kind.value for kind in Kind] == [kind.name.lower() for kind in Kind]


def test_a_state_is_called_as_service_bus_calls_it() -> None:
    assert {state.value for state in MessageState} == {"Active", "Deferred", "Scheduled"}


def test_accepted_by_is_called_as_the_answer_to_a_send_calls_it() -> None:
    assert [accepted_by.value for accepted_by in AcceptedBy] == ["primary", "backlog", "spool"]
