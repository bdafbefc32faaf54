"""Queues that the command line gives: the first ones of a gateway that has no file yet."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.config.places import is_own_url
from gateway.config.problems import ConfigError

QUEUE_OPTION: Final = "--queue"


def with_queues(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """
    The configuration with these queues in the pair's primary, or in the first namespace of a
    gateway without a pair. A queue that it has already isn't added again.

    Raises:
        ConfigError: that namespace isn't a store of the gateway itself.
    """
    if not names:
        return dict(table)
    namespaces, pairing = _table_of(table, "namespaces"), _table_of(table, "pairing")
    name = pairing.get("primary") or next(iter(namespaces), "")
    namespace = _table_of(namespaces, str(name))
    if not namespace or not isinstance(namespace.get("queues", []), list):
        return dict(table)  # the check of the whole table says what is wrong with it
    if not is_own_url(str(namespace.get("url", ""))):
        raise ConfigError(  # without the URL: a secret may be in it, which no check has refused yet
            [
                f"{QUEUE_OPTION}: a namespace of the gateway's own (embedded:PATH) expected;"
                f" `pairgate create queue` makes one in namespace {name}"
            ]
        )
    queues = list(namespace.get("queues", []))
    for each in names:
        if each.lower() not in {str(queue).lower() for queue in queues}:
            queues.append(each)
    return {**table, "namespaces": {**namespaces, name: {**namespace, "queues": queues}}}


def _table_of(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key)
    return found if isinstance(found, dict) else {}
