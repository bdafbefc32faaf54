"""JSON schemas for bodies: of `send`, and of `listen`."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app.failure import Failure
from gateway.app.operations.json_schema import read_schema
from gateway.app.operations.typed_message import BodyType, kind_of, typed_body
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import DeadLetter, Delivery, Message
from gateway.listening.items import Item
from gateway.listening.process.handlers import WRONG_TYPE, TypedHandler

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {"cents": {"type": "integer", "minimum": 1, "default": 5}},
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z]+$"},
        "cents": {"$ref": "#/definitions/cents"},
    },
}


DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
TREE = {
    "definitions": {
        "tree": {"properties": {"left": {"$ref": "#/definitions/side"}}},
        "side": {"$ref": "#/definitions/tree"},
    },
    "$ref": "#/definitions/tree",
}


def written(folder: Path, content: Any) -> Path:
    place = folder / "order.json"
    place.write_text(content if isinstance(content, str) else json.dumps(content))
    return place


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"id": "a", "cents": "secret"}, "the body.cents: type 'integer' expected"),
        ({"id": "a", "cents": 0}, "the body.cents: minimum 1 expected"),
        ({"cents": 1}, "the body: required ['id'] expected"),
        ({"id": "SECRET"}, "the body.id: pattern '^[a-z]+$' expected"),
        ([], "the body: type 'object' expected"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_by_place_and_rule(
    body: Any, problem: str, tmp_path: Path
) -> None:
    schema = read_schema(written(tmp_path, SCHEMA))

    with pytest.raises(Failure) as caught:
        typed_body(json.dumps(body).encode(), BodyType.JSON, schema)

    assert str(caught.value) == problem


@pytest.mark.parametrize("draft", ["draft-04/schema#", "draft-06/schema#", "draft-07/schema"])
def test_each_documented_draft_is_a_schema(draft: str, tmp_path: Path) -> None:
    place = written(tmp_path, {"$schema": f"http://json-schema.org/{draft}", "type": "array"})

    read_schema(place).check([])


def test_a_value_where_the_schema_has_none_is_named(tmp_path: Path) -> None:
    schema = read_schema(written(tmp_path, {"properties": {"old": False}}))

    with pytest.raises(InvalidRequest, match=r"^the body\.old: no value expected$"):
        schema.check({"old": 1})


def test_a_body_that_cannot_be_checked_does_not_fit(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"left": deep}

    with pytest.raises(InvalidRequest, match="the body: it's nested too deeply for the schema"):
        read_schema(written(tmp_path, TREE)).check(deep)
    with pytest.raises(InvalidRequest, match="the body: a number is too large for the schema"):
        read_schema(written(tmp_path, {"multipleOf": 0.01})).check(10**400)


def test_a_body_that_fits_is_left_as_it_is(tmp_path: Path) -> None:
    body = b'{"id":  "a"}'

    typed = typed_body(body, BodyType.JSON, read_schema(written(tmp_path, SCHEMA)))

    assert typed.body == body


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "the schema"),
        ({"type": "orange"}, "not a schema of draft 4, 6 or 7"),
        ({"$ref": "http://127.0.0.1:1/other.json"}, r"\$ref: a place in this file expected"),
        ({"$ref": "file:///etc/hostname"}, r"\$ref: a place in this file expected"),
        ({"$ref": "#"}, r"\$ref: a reference leads back to itself"),
        ({"type": "object", "allOf": [{"$ref": "#"}]}, r"\$ref: a reference leads back to itself"),
        ({"multipleOf": 0}, "not a schema of draft 4, 6 or 7: "),
        ([1], "not a schema of draft 4, 6 or 7: an object, true or false expected"),
        ({"$schema": DRAFT_2020}, r"not a schema of draft 4, 6 or 7: \$schema: .*2020-12"),
        ({"$schema": 7}, r"not a schema of draft 4, 6 or 7: \$schema: 7"),
    ],
)
def test_a_file_that_is_no_schema_is_refused_by_its_name(
    content: Any, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(Failure, match=rf"--schema .*order\.json: .*{problem}"):
        read_schema(written(tmp_path, content))


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"--schema .*none\.json: No such file"):
        read_schema(tmp_path / "none.json")


def test_a_schema_means_json(tmp_path: Path) -> None:
    place = tmp_path / "order.json"

    assert kind_of("bytes", place) is BodyType.JSON
    assert kind_of("cloudevents", place) is BodyType.CLOUD_EVENT
    assert kind_of("text", None) is BodyType.TEXT
    with pytest.raises(Failure, match="not text"):
        kind_of("text", place)


async def test_a_listener_dead_letters_a_body_that_does_not_fit(tmp_path: Path) -> None:
    handled = list[bytes]()

    async def handle(item: Item[Message]) -> None:
        assert isinstance(item.message.body, bytes)
        handled.append(item.message.body)

    handler = TypedHandler(handle, BodyType.JSON, read_schema(written(tmp_path, SCHEMA)))
    results = []
    for body in (b'{"id": "a"}', b'{"id": 7}'):
        message = Message(body=body)
        delivery = Delivery(message=message, sequence_number=1)
        item = Item(value=message, delivery=delivery, queue=EntityPath("orders"))
        results.append(await handler(item))

    assert handled == [b'{"id": "a"}']
    assert results == [
        None,
        DeadLetter(reason=WRONG_TYPE, description="the body.id: type 'string' expected"),
    ]
