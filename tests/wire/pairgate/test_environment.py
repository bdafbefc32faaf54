import json
from uuid import UUID

from gateway.domain.message import Delivery, Message
from gateway.wire.pairgate.environment import build_environment


def environment_of(message: Message) -> dict[str, str]:
    return dict(build_environment(Delivery(message=message, sequence_number=7), queue="orders"))


def test_fields_are_variables() -> None:
    found = environment_of(Message(message_id="m1", content_type="text/plain"))

    assert found["PAIRGATE_QUEUE"] == "orders"
    assert found["PAIRGATE_MESSAGE_ID"] == "m1"
    assert found["PAIRGATE_CONTENT_TYPE"] == "text/plain"
    assert found["PAIRGATE_ATTEMPT"] == "1"
    assert found["PAIRGATE_SEQUENCE_NUMBER"] == "7"
    assert "PAIRGATE_SUBJECT" not in found


def test_properties_are_json_and_variables() -> None:
    number = UUID(int=1)
    found = environment_of(
        Message(properties={"colour": "red", "a-b": 1, "id": number, "up": True})
    )

    assert json.loads(found["PAIRGATE_PROPERTIES"]) == {
        "colour": "red",
        "a-b": 1,
        "id": str(number),
        "up": True,
    }
    assert found["PAIRGATE_PROPERTY_colour"] == "red"
    assert found["PAIRGATE_PROPERTY_up"] == "true"
    assert "PAIRGATE_PROPERTY_a-b" not in found


def test_a_value_that_a_variable_cannot_hold_is_left_out() -> None:
    found = environment_of(Message(message_id="a\0b", properties={"colour": "\ud800"}))

    assert "PAIRGATE_MESSAGE_ID" not in found
    assert "PAIRGATE_PROPERTY_colour" not in found
    assert json.loads(found["PAIRGATE_PROPERTIES"]) == {"colour": "\ud800"}
