"""
Addresses of links, as the SDKs of Service Bus write them.

    [scheme://host[:port]/] path                       an entity, or one of its sub-queues
    [scheme://host[:port]/] path/$management           requests about that entity
    $cbs                                               tokens
"""

import enum
from typing import Final
from urllib.parse import unquote

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest

_CBS: Final = "$cbs"
_MANAGEMENT: Final = "$management"
_MAX_LENGTH: Final = 1024  # characters: several times the longest path, for an address with a host


class NodeKind(enum.Enum):
    ENTITY = "entity"
    MANAGEMENT = "management"
    TOKENS = "tokens"


@attrs.frozen(kw_only=True)
class Node:
    """
    The node that an address names; `entity` is None for `$cbs` and for the namespace's management.
    """

    kind: NodeKind
    entity: EntityPath | None = None


def parse_address(address: str | None) -> Node:
    """
    The node that an address names.

    Raises:
        InvalidRequest: there is no address, or it names no entity.
    """
    if not address or len(address) > _MAX_LENGTH:
        raise InvalidRequest(f"address: 1 to {_MAX_LENGTH} characters expected")
    _, scheme_end, location = address.partition("://")
    path = location.partition("/")[2] if scheme_end else address
    path = unquote(path).strip("/")
    if path.lower() == _CBS:
        return Node(kind=NodeKind.TOKENS)
    entity, _, last = path.rpartition("/")
    if last.lower() != _MANAGEMENT:
        return Node(kind=NodeKind.ENTITY, entity=EntityPath.parse(path))
    return Node(kind=NodeKind.MANAGEMENT, entity=EntityPath.parse(entity) if entity else None)
