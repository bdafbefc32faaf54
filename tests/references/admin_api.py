"""The calls of docs/reference/admin-api.md, from the OpenAPI document of the endpoint `admin`."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.app.status.sections import SECTIONS
from gateway.frontends.admin.openapi import description
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.references.tables import table

Schema = dict[str, Any]

LIMITS: Final = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "length at least",
    "maxLength": "length at most",
    "minItems": "at least",
    "maxItems": "at most",
}
BODIES: Final = {"text/plain": "text", "text/event-stream": "server-sent events"}


def parts() -> Mapping[str, str]:
    """The calls, the meanings of their statuses, and the objects that they answer with."""
    document = description(CONTROL_CALLS, SECTIONS)
    calls = [
        (f"`{method.upper()} {path}`", call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    ]
    meanings: dict[str, dict[str, None]] = {}
    for _, call in calls:
        for status, answer in call["responses"].items():
            meanings.setdefault(status, {})[answer["description"]] = None
    objects = document["components"]["schemas"]
    return {
        "calls": table(
            ("call", "does", "right", "takes", "answers with"),
            *(
                (name, call["summary"], right(call), taken(call), answers(call["responses"]))
                for name, call in calls
            ),
        ),
        "statuses": table(
            ("status", "means"),
            *((status, "; ".join(meanings[status])) for status in sorted(meanings)),
        ),
        "objects": table(
            ("object", "keys"),
            *((f"`{name}`", "; ".join(keys(schema))) for name, schema in objects.items()),
        ),
    }


def right(call: Schema) -> str:
    text: str = call.get("description", "none")
    return text.removeprefix("Needs the right ").removesuffix(".")


def taken(call: Schema) -> str:
    """The parameters of the call, and the keys of its body. Required ones are bold."""
    given = [
        named(each["name"], each["schema"], each.get("required", False), each.get("description"))
        for each in call["parameters"]
    ]
    for body in call.get("requestBody", {}).get("content", {}).values():
        given += keys(body["schema"])
    return "; ".join(given)


def answers(responses: Schema) -> str:
    """The bodies of the call, each behind its statuses."""
    statuses: dict[str, list[str]] = {}
    for status, answer in sorted(responses.items()):
        body = " or ".join(
            BODIES.get(media) or kind(each["schema"]) for media, each in answer["content"].items()
        )
        statuses.setdefault(body, []).append(status)
    return "; ".join(f"{', '.join(each)}: {body}" for body, each in statuses.items())


def keys(schema: Schema) -> list[str]:
    """The keys of an object with their values. The required keys of a request are bold."""
    required = schema["required"] if schema.get("additionalProperties") is False else ()
    return [
        named(name, each, name in required, each.get("description"))
        for name, each in schema["properties"].items()
    ]


def named(name: str, schema: Schema, is_required: bool, meaning: str | None) -> str:
    shown = f"**`{name}`**" if is_required else f"`{name}`"
    return f"{shown}: {kind(schema)}" + (f", {meaning}" if meaning else "")


def kind(schema: Schema) -> str:
    """The values that the schema allows, in words."""
    bounds = ", ".join(f"{word} {schema[key]}" for key, word in LIMITS.items() if key in schema)
    limits = f" ({bounds})" if bounds else ""
    match schema:
        case {"$ref": str(path)}:
            return f"`{path.rpartition('/')[2]}`"
        case {"enum": list(values)}:
            return " or ".join(f"`{value}`" for value in values)
        case {"anyOf": list(each)}:
            return " or ".join(map(kind, each))
        case {"allOf": list(each)}:
            return " with ".join(map(kind, each))
        case {"items": dict(item)}:
            return f"list{limits} of {kind(item)}"
        case {"additionalProperties": dict(value)}:
            return f"object of {kind(value)}"
        case {"properties": dict()}:
            return f"{{{', '.join(keys(schema))}}}"
        case {"format": "date-time"}:
            return "date"
    return f"{schema['type']}{limits}"
