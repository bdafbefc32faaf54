"""
The description of the endpoint `admin` in OpenAPI 3.1, served at `/openapi.json`.

It is made from the classes that the codecs read and write, and from the table of control calls, so
that it can't differ from them. A test compares its paths with those in the code.
"""

import enum
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import attrs

from gateway import __version__
from gateway.domain.operators.control import LONGEST_REASON, MOST, SAYS
from gateway.domain.status.figures import section_in
from gateway.domain.status.process import Status
from gateway.domain.status.sections import Section, Sections
from gateway.extensions.listing import parts
from gateway.frontends.admin.operators import JSON
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.control_call import ControlCall
from gateway.wire.pairgate.status import HISTORY_PATH

PATH: Final = "/openapi.json"
TEXT: Final = {"type": "string"}
_MEANINGS: Final = {
    400: "the request is malformed",
    401: "no credentials, or not those of a policy with the right",
    403: "a page of another site, or a host name of elsewhere",
    404: "there is no such entity",
    413: "the body is too large",
    501: "this process can't do that",
    503: "the namespace can't be reached, or is busy",
    504: "the namespace didn't answer in time",
}
_READER: Final = "Listen on everything"
_OPERATOR: Final = "Manage on everything"
ALWAYS: Final = (400, 401, 403)

Schema = dict[str, Any]
Calls = tuple[ControlCall[Any, Any], ...]
SectionList = tuple[Section[Any], ...]


@attrs.frozen(kw_only=True)
class PathOperation:
    """A method of a path. `answers` are its successes, by status: types to schemas."""

    path: str
    summary: str
    answers: Mapping[int, Mapping[str, Schema]]
    method: str = "get"
    right: str | None = None  # and on which entities; None: no credentials are needed
    refusals: Sequence[int] = ALWAYS
    parameters: Sequence[Schema] = ()
    body: Schema | None = None
    body_is_required: bool = False

    @property
    def id(self) -> str:
        """The operation's name."""
        return f"{self.method} {self.path}"


def openapi_answer(request: Request, calls: Calls, sections: SectionList) -> Response | None:
    """
    The description; None if the request is for another path. The request needs no credentials.
    """
    if request.path != PATH:
        return None
    headers = Headers.of({"Content-Type": JSON, "Cache-Control": "no-cache"})
    return Response(status=200, headers=headers, body=_encoded(calls, sections))


@cache
def _encoded(calls: Calls, sections: SectionList) -> bytes:
    return json.dumps(description(calls, sections), indent=1).encode() + b"\n"


def description(calls: Calls, sections: SectionList) -> Schema:
    """The whole description, with these control calls and these sections of the status."""
    schemas = _Schemas()
    schemas.of(Status)
    for section in sections:
        schemas.add(section)
    paths: dict[str, Schema] = {}
    for operation in operations(schemas, calls):
        paths.setdefault(operation.path, {})[operation.method] = _written(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pairgate: the endpoint `admin`",
            "version": __version__,
            "description": (
                "Reading needs the right Listen on everything, an order the right Manage on"
                " everything. On loopback without access policies, and over a Unix socket, no"
                " credentials are needed."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": object_schema({"error": TEXT}), **schemas.made},
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "name and key of an access policy",
                },
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "a SharedAccessSignature, as Service Bus accepts it",
                },
            },
        },
    }


def operations(schemas: "_Schemas", calls: Calls) -> Iterator[PathOperation]:
    """Every operation of the endpoint."""
    yield from _reads(schemas.of)
    yield from _of_queues()
    for call in calls:
        operation = _of_call(call, schemas)
        yield operation
        if call.old_path:
            yield attrs.evolve(operation, path=call.old_path)


def _of_call(call: ControlCall[Any, Any], schemas: "_Schemas") -> PathOperation:
    answer = schemas.of(call.answer)
    if call.survey is not None:
        answer = {"anyOf": [schemas.of(call.survey), answer]}
    operation = PathOperation(
        path=call.path,
        method=call.method.lower(),
        summary=call.summary,
        answers={200: {JSON: answer}},
        right=_READER,
        refusals=(*ALWAYS, *call.refusals),
    )
    if call.reads:
        parameters = tuple(in_query(key.name, key.metadata[SAYS], TEXT) for key in call.keys)
        return attrs.evolve(operation, parameters=parameters)
    body = schemas.request(call.request, call.keys, call.is_required)
    return attrs.evolve(
        operation,
        right=_OPERATOR if call.survey is None else f"{_OPERATOR}; to count, {_READER}",
        refusals=(*ALWAYS, 413, 501, *call.refusals),
        body=body,
        body_is_required=bool(body["required"]),
    )


def _reads(of: Callable[[Any], Schema]) -> Iterator[PathOperation]:
    readiness = object_schema({"ready": {"type": "boolean"}, "reason": TEXT})
    yield PathOperation(
        path="/livez",
        summary="answers as long as the process does",
        answers={200: {"text/plain": TEXT}},
        refusals=(400, 403),
    )
    yield PathOperation(
        path="/readyz",
        summary="the readiness for work, with its reason",
        answers={200: {JSON: readiness}, 503: {JSON: readiness}},
        refusals=(400, 403),
    )
    yield PathOperation(
        path=PATH,
        summary="this description",
        answers={200: {JSON: {"type": "object"}}},
        refusals=(400, 403),
    )
    status = {"allOf": [of(Status), object_schema(_of_problems())]}
    yield PathOperation(
        path="/status",
        summary="the state of the process",
        answers={200: {JSON: status}},
        right=_READER,
    )
    yield PathOperation(
        path="/metrics",
        summary="the same figures in Prometheus's text format",
        answers={200: {"text/plain": TEXT}},
        right=_READER,
    )
    yield PathOperation(
        path=HISTORY_PATH,
        summary="the backlog of the last hour",
        answers={200: {JSON: _history()}},
        right=_READER,
    )
    yield PathOperation(
        path="/events",
        summary="events as they happen (server-sent events)",
        answers={200: {"text/event-stream": TEXT}},
        right=_READER,
        parameters=(
            in_query("recent", "at most so many past events", {"type": "integer", "minimum": 0}),
            in_query(
                "follow", "false ends the stream after the past events", _choice("true", "false")
            ),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "resume after this event",
                "schema": TEXT,
            },
        ),
    )


def _history() -> Schema:
    date = {"type": "string", "format": "date-time"}
    depths = {
        "pending": {"type": "array", "items": _or_null({"type": "integer"})},
        "oldest_age": {"type": "array", "items": _or_null({"type": "number"})},
    }
    queues = {"type": "object", "additionalProperties": object_schema(depths)}
    return object_schema({"at": {"type": "array", "items": date}, **depths, "queues": queues})


def _of_problems() -> Schema:
    """The values that the codec of the status derives."""
    date = _or_null({"type": "string", "format": "date-time"})
    parts = {
        **dict.fromkeys(("kind", "entity", "text", "remedy"), TEXT),
        **dict.fromkeys(("since", "last", "deadline"), date),
        "processes": {"type": "array", "items": TEXT},
        "here": {"type": "boolean"},
    }
    return {
        "good": {"type": "boolean"},
        "problems": {"type": "array", "items": TEXT},
        "problem_details": {"type": "array", "items": object_schema(parts)},
    }


def _of_queues() -> Iterator[PathOperation]:
    figures = object_schema(
        {
            "entity": TEXT,
            "status": TEXT,
            "depth": {"type": "integer"},
            "age_seconds": {"type": "number"},
        },
        required=("entity", "status"),
    )
    refusals = (*ALWAYS, 404, 501, 503, 504)
    yield PathOperation(
        path="/scale/{entity}",
        summary="depth and age of a queue or subscription, for scalers (Prometheus gets text)",
        answers={200: {JSON: figures, "text/plain": TEXT}},
        right="Listen on the entity",
        refusals=refusals,
        parameters=(in_path("entity"),),
    )
    queues = {**in_query("queues", "separated by commas", TEXT), "required": True}
    yield PathOperation(
        path="/scale",
        summary="the same of several queues; one that doesn't exist has the status Missing",
        answers={200: {JSON: object_schema({"queues": {"type": "array", "items": figures}})}},
        right="Listen on these queues",
        refusals=(*ALWAYS, 501, 503, 504),
        parameters=(queues,),
    )
    for routes in parts("admin_routes"):
        yield from routes.operations()


def _written(operation: PathOperation) -> Schema:
    responses = {
        str(status): {
            "description": "done" if status < 400 else "not ready",
            "content": {kind: {"schema": schema} for kind, schema in contents.items()},
        }
        for status, contents in operation.answers.items()
    }
    error = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in operation.refusals:
        responses[str(status)] = {"description": _MEANINGS[status], "content": error}
    written: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": list(operation.parameters),
        "responses": responses,
    }
    if operation.right is not None:
        written["description"] = f"Needs the right {operation.right}."
        written["security"] = [{"basic": []}, {"token": []}, {}]
    if operation.body is not None:
        written["requestBody"] = {
            "required": operation.body_is_required,
            "content": {JSON: {"schema": operation.body}},
        }
    return written


def object_schema(
    fields: Schema, *, required: Sequence[str] | None = None, closed: bool = False
) -> Schema:
    """The schema of an object; all fields are required, unless `required` names those."""
    schema: Schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields if required is None and not closed else required or ()),
    }
    return {**schema, "additionalProperties": False} if closed else schema


def in_query(name: str, text: str, schema: Schema) -> Schema:
    """A parameter of the query; `text` describes it."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def in_path(name: str) -> Schema:
    """A parameter of the path."""
    return {"name": name, "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}


def _choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


@attrs.define
class _Schemas:
    """Schemas of classes, as their codecs write them."""

    made: dict[str, Schema] = attrs.field(factory=dict)

    def of(self, kind: Any) -> Schema:
        """The schema of an answer: a class of attrs becomes a component."""
        if attrs.has(kind):
            if kind.__name__ not in self.made:
                self.made[kind.__name__] = {}  # a class may contain itself
                hints = get_type_hints(kind)
                fields = {
                    each.name: self.of(hints[each.name])
                    for each in attrs.fields(kind)
                    if hints[each.name] != Sections  # `add` adds them
                }
                self.made[kind.__name__] = object_schema(fields)
            return {"$ref": f"#/components/schemas/{kind.__name__}"}
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in {Union, types.UnionType}:
            return {"anyOf": [self.of(each) for each in arguments]}
        if origin is tuple or (origin is not None and issubclass(origin, Sequence)):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        return dict(_PLAIN[kind])

    def add(self, section: Section[Any]) -> None:
        """Add a section to the schema of the class that has it."""
        kind, (around, name) = Status, section.place
        for key in around:
            kind = section_in(get_type_hints(kind)[key])
        schema = self.made[kind.__name__]
        schema["properties"][name] = self.of(section.kind)
        schema["required"].append(name)

    def request(self, kind: Any, keys: Sequence[Any], is_required: Callable[[Any], bool]) -> Schema:
        """The schema of a request with these keys, of which some may be missing."""
        hints = get_type_hints(kind)
        fields = {key.name: _KEYS.get(key.name) or self._asked(hints[key.name]) for key in keys}
        required = [key.name for key in keys if is_required(key)]
        return object_schema(fields, required=required, closed=True)

    def _asked(self, kind: Any) -> Schema:
        if not attrs.has(kind):
            return self.of(kind)
        return self.request(kind, attrs.fields(kind), lambda key: key.default is attrs.NOTHING)


_PLAIN: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    types.NoneType: {"type": "null"},
}

# Keys of requests whose class doesn't tell all that is checked.
_KEYS: Final[Mapping[str, Schema]] = {
    "targets": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "maxItems": MOST,
    },
    "reason": {"type": "string", "maxLength": LONGEST_REASON},
    "rate": _or_null({"type": "number", "exclusiveMinimum": 0}),
    "wait": {"type": "boolean", "description": "answer when the drain has ended"},
}
