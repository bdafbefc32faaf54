"""Authorization and response formats that all requests of operators and their tools share."""

import binascii
import json
import pwd
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from gateway.domain.access import Access, Refusal, Refused, Right, TokenClaim
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest, drop_tracebacks
from gateway.domain.operators.control import Operator
from gateway.frontends.admin.readiness import Readiness
from gateway.frontends.auth import REALM, Authorizer
from gateway.net.visits import current_visit, record_authorized
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.pairgate.scale import MOST_QUEUES
from gateway.wire.servicebus.errors import build_error, challenged

_BASIC: Final = "basic "
JSON: Final = "application/json"
NOBODY: Final = "anonymous"  # a client of this machine that needed no key
UNKNOWN: Final = "unknown"


def check_right(
    authorizer: Authorizer, request: Request, right: Right, entity: EntityPath | None
) -> str:
    """
    Return the name of the client's policy if it has the right on the entity; None stands for the
    whole namespace.

    A client authenticates by HTTP Basic with name and key of a policy, or by a token that Service
    Bus would accept. On loopback without access policies it needs neither; its name is then empty,
    as over a Unix socket, whose file's permissions are the access control.

    Raises:
        NotAuthorized: the text says why not.
        InvalidRequest: the Authorization header is malformed.
    """
    if current_visit().user is not None:
        record_authorized()
        return ""
    text = request.headers.get("Authorization")
    if text is None and authorizer.is_open:
        record_authorized()
        return ""
    path = "" if entity is None else entity.name
    access = Access(right=right, entity=entity, path=path)
    claim = _claim(authorizer, text)
    authorizer.require(claim, access)
    return claim.key_name


def queues_of(request: Request, authorizer: Authorizer) -> Sequence[EntityPath]:
    """
    The queues that the query names, to which the client has the right to listen.

    Raises:
        NotAuthorized: it hasn't.
        InvalidRequest: a name is malformed, or there are too many.
    """
    names = request.query.get("queues", "").split(",")
    if len(names) > MOST_QUEUES:
        raise InvalidRequest(f"queues: up to {MOST_QUEUES} expected, got {len(names)}")
    queues = [EntityPath.parse(name) for name in names]
    for queue in queues:
        check_right(authorizer, request, Right.LISTEN, queue)
    return queues


def operator_of(authorizer: Authorizer, request: Request, right: Right = Right.MANAGE) -> Operator:
    """
    The client, if it has that right on every entity. An operator may manage every entity.

    Raises:
        NotAuthorized: the client doesn't have that right.
        InvalidRequest: the Authorization header is malformed.
    """
    name, visit = check_right(authorizer, request, right, None), current_visit()
    if visit.user is not None:
        name = _name_of(visit.user)
    return Operator(name=name or NOBODY, peer=visit.peer or UNKNOWN)


def is_operator(authorizer: Authorizer, request: Request) -> bool:
    """True if the client may steer. A missing right isn't reported as refused."""
    text = request.headers.get("Authorization")
    if current_visit().user is not None or (text is None and authorizer.is_open):
        return True
    try:
        claim = _claim(authorizer, text)
        authorizer.check(claim, Access(right=Right.MANAGE, entity=None, path=""))
    except BrokerError:
        return False
    return True


def needs_credentials(authorizer: Authorizer) -> bool:
    """True if a request of this client without credentials is refused. Nothing is reported."""
    if current_visit().user is not None or authorizer.is_open:
        return False
    return authorizer.claim_of_certificate() is None


def _name_of(user: int) -> str:
    """The name of that user of this machine, or its number."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _claim(authorizer: Authorizer, text: str | None) -> TokenClaim:
    if text is None or not text.lower().startswith(_BASIC):
        return authorizer.claim(text)
    try:
        name, _, key = b64decode(text[len(_BASIC) :], validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError) as error:
        authorizer.report_refused(Refused("no NAME:KEY in Base64", Refusal.MALFORMED))
        raise InvalidRequest("Authorization: NAME:KEY in Base64 expected") from error
    return authorizer.claim_by_key(name, key)


def check_json(request: Request) -> None:
    """
    Check the type of an order's body: a page of another site can post a form with a browser's
    credentials, but no JSON.

    Raises:
        InvalidRequest: it isn't JSON.
    """
    kind = (request.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise InvalidRequest(f"Content-Type: {JSON} expected")


def health(request: Request, readiness: Readiness) -> Response | None:
    """The answer to `/livez` and `/readyz`; None if the request is for another path."""
    if request.path == "/livez":
        return body_answer(200, "text/plain", b"ok\n")
    if request.path == "/readyz":
        state = {"ready": readiness.is_ready, "reason": readiness.reason}
        return json_answer(200 if readiness.is_ready else 503, state)
    return None


def refused(error: BrokerError, authorizer: Authorizer) -> Response:
    """
    The error with the status that Service Bus REST gives it, as JSON. A 401 names the kinds of
    credentials that the authorizer may accept.
    """
    drop_tracebacks(error)
    known = build_error(error)
    fields = [(name, value) for name, value in known.headers.items if name != "Content-Type"]
    answer = json_answer(known.status, {"error": str(error)})
    answer = attrs.evolve(answer, headers=Headers.of([*answer.headers.items, *fields]))
    return challenged(answer, [f'Basic realm="{REALM}"', *authorizer.bearer_challenge])


def json_answer(status: int, value: Mapping[str, object]) -> Response:
    return body_answer(status, JSON, json.dumps(value).encode() + b"\n")


def body_answer(status: int, content_type: str, body: bytes) -> Response:
    headers = Headers.of({"Content-Type": content_type, "Cache-Control": "no-store"})
    return Response(status=status, headers=headers, body=body)
