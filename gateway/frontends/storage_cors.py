"""Which scripts of which pages may use the Queue service: the rules of its properties."""

from fnmatch import fnmatchcase

import trio

from gateway.frontends.storage_notes import read_service_properties
from gateway.ports import Broker
from gateway.wire import storage_queue_operations as storage
from gateway.wire.http import Headers, Request, Response
from gateway.wire.storage_queue_answers import origin_headers
from gateway.wire.storage_queue_errors import StorageRefusal


async def check_preflight(broker: Broker, wish: storage.Preflight) -> storage.CorsRule:
    """
    The rule that allows it.

    Raises:
        StorageRefusal: CorsPreflightFailure.
    """
    for rule in (await read_service_properties(broker)).cors or ():
        if _fits(rule, wish.origin, wish.method) and _takes(rule, wish.headers):
            return rule
    raise StorageRefusal("CorsPreflightFailure")


async def with_origin(broker: Broker, request: Request, response: Response) -> Response:
    """The response as a script may read it, where a rule allows that."""
    origin = request.headers.get("Origin")
    if origin is None:
        await trio.lowlevel.checkpoint()
        return response
    for rule in (await read_service_properties(broker)).cors or ():
        if _fits(rule, origin, request.method):
            fields = (*response.headers.items, *origin_headers(origin, rule))
            return Response(status=response.status, headers=Headers(fields), body=response.body)
    return response


def _fits(rule: storage.CorsRule, origin: str, method: str) -> bool:
    origins = _listed(rule.origins)
    return ("*" in origins or origin in origins) and method.upper() in [
        each.upper() for each in _listed(rule.methods)
    ]


def _takes(rule: storage.CorsRule, headers: tuple[str, ...]) -> bool:
    patterns = [each.lower() for each in _listed(rule.headers)]
    return all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in headers)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
