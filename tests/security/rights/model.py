"""
The expected verdict of each row of the rights table, without any code of the gateway's own checks.

A row is a credential, an operation, and an entity as its client writes it. The verdict follows from
the rights that the credential's policies grant, on which entities, and from the path to which a
shared access signature is restricted.
"""

import enum
import re
from typing import Final
from urllib.parse import unquote

import attrs

_SUB_QUEUE: Final = re.compile(r"(/\$transfer)?/\$deadletterqueue$")
_SUBSCRIPTION: Final = re.compile(r"/subscriptions/[^/]+$")


class Right(enum.Enum):
    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


class Kind(enum.Enum):
    """Kinds of entities: an operation works on some of them."""

    QUEUE = "queue"
    DEAD_LETTERS = "dead letters"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    SESSIONS = "queue with sessions"
    NEW = "name of no entity"
    NAMESPACE = "namespace"


@attrs.frozen
class Entity:
    """An entity as a client writes it, percent-encoded."""

    written: str
    kind: Kind

    @property
    def path(self) -> str:
        """The path in lower case."""
        return unquote(self.written).lower()

    @property
    def owner(self) -> str:
        """The queue or topic that rights are given on."""
        return _SUBSCRIPTION.sub("", _SUB_QUEUE.sub("", self.path))


@attrs.frozen
class Grant:
    """Rights on some queues and topics; None: on the whole namespace."""

    rights: frozenset[Right]
    entities: frozenset[str] | None = None

    def allows(self, right: Right, entity: Entity) -> bool:
        if right not in self.rights and Right.MANAGE not in self.rights:
            return False
        if self.entities is None:
            return True
        return entity.kind is not Kind.NAMESPACE and entity.owner in self.entities


@attrs.frozen(kw_only=True)
class Permit:
    """The permissions that come with a credential."""

    grants: tuple[Grant, ...] = ()  # empty: those of a credential that nobody should accept
    scope: str = ""  # the path to which a signature is restricted; empty: the whole endpoint

    def allows(self, right: Right | None, entity: Entity, below: str = "") -> bool:
        """
        The verdict for an operation at a path `below` the entity (`$management`). A right of None
        stands for an operation that concerns no entity: any credential with rights suffices.
        """
        if right is None:
            return bool(self.grants)
        path = [*filter(None, f"{entity.path}/{below}".lower().split("/"))]
        scope = self.scope.lower().split("/") if self.scope else []
        if path[: len(scope)] != scope:
            return False
        return any(grant.allows(right, entity) for grant in self.grants)
