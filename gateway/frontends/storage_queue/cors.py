"""
CORS: decides by the rules of the service properties which pages' scripts may use the Queue service.
"""

from collections.abc import Iterable, Sequence

from gateway.frontends.storage_queue.notes import SETTINGS, LastNotes
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.answers import origin_headers
from gateway.wire.storage_queue.errors import StorageRefusal


async def check_preflight(notes: LastNotes, wish: storage.Preflight) -> storage.CorsRule:
    """
    The rule that allows the preflight.

    Raises:
        StorageRefusal: CorsPreflightFailure.
    """
    for rule in await _rules(notes):
        if _fits(rule, wish.origin, wish.method) and _takes(rule, wish.headers):
            return rule
    raise StorageRefusal("CorsPreflightFailure")


async def origin_fields(notes: LastNotes, origin: str, method: str) -> list[tuple[str, str]]:
    """The headers that let the page's script read the response, if a rule allows it."""
    fitting = (rule for rule in await _rules(notes) if _fits(rule, origin, method))
    rule = next(fitting, None)
    return [] if rule is None else list(origin_headers(origin, rule))


async def _rules(notes: LastNotes) -> Sequence[storage.CorsRule]:
    properties = (await notes.read(SETTINGS)).properties
    return () if properties is None or properties.cors is None else properties.cors


def _fits(rule: storage.CorsRule, origin: str, method: str) -> bool:
    origins = _listed(rule.origins)
    return ("*" in origins or origin in origins) and method.upper() in [
        each.upper() for each in _listed(rule.methods)
    ]


def _takes(rule: storage.CorsRule, headers: Iterable[str]) -> bool:
    """
    True if the rule allows these headers. As in Azure, a `*` ends the beginning of a name.

    Anybody may send a preflight, and it may name thousands of headers.
    """
    allowed = frozenset(each.lower() for each in _listed(rule.headers))
    beginnings = tuple(each[:-1] for each in allowed if each.endswith("*"))
    return all(name in allowed or name.startswith(beginnings) for name in headers)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
