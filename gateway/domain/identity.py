"""
The identity of a namespace.

A namespace reports its identity, which stays the same when its address changes. A namespace without
one is identified by its address, in the form of `config.addresses`. Envelopes and backlog queues
carry a fingerprint of either: short, and without a host name.
"""

import hashlib
import re
from typing import Final
from urllib.parse import quote

import attrs

from gateway.domain.errors import InvalidRequest, NotSupported

FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
MOST_LENGTH: Final = 512  # characters of an identity's text

STORE: Final = "store"  # an id in the store of an embedded broker, and in its backups
MEMORY: Final = "memory"  # an id that lasts as long as its process
RABBITMQ: Final = "rabbitmq"  # the cluster's name and the vhost

_TEXT: Final = re.compile(r"(?P<kind>[a-z][a-z0-9-]{0,30}):(?P<name>[ -~]+)", re.ASCII)


@attrs.frozen
class Identity:
    """The identity that a namespace reports."""

    kind: str
    name: str

    @property
    def is_lasting(self) -> bool:
        """True if the identity survives a restart of the namespace."""
        return self.kind != MEMORY

    @property
    def is_unique(self) -> bool:
        """True if no other namespace can have the same identity; names of clusters may repeat."""
        return self.kind in {STORE, MEMORY}

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_identity(text: str) -> Identity:
    """
    The reverse of `str`.

    Raises:
        InvalidRequest: the text is no identity.
    """
    found = _TEXT.fullmatch(text) if len(text) <= MOST_LENGTH else None
    if found is None:
        raise InvalidRequest(f"identity of a namespace: KIND:NAME expected, found {text[:40]!r}")
    return Identity(found["kind"], found["name"])


def rabbitmq_identity(cluster: str, vhost: str) -> Identity:
    """The identity of a vhost; `cluster` is the name that the cluster was given."""
    return Identity(RABBITMQ, f"{quote(cluster, safe='@')}/{quote(vhost, safe='')}")


def known_to_all(identity: Identity, hosts: int) -> Identity:
    """
    The identity, if each of the namespace's hosts reports the same.

    A RabbitMQ cluster without a name of its own has that of a node, with an `@`; after a failure
    each of its nodes may report its own.

    Raises:
        NotSupported: there are several hosts, and the cluster has such a name.
    """
    if hosts > 1 and identity.kind == RABBITMQ and "@" in identity.name.partition("/")[0]:
        raise NotSupported(
            "the cluster has the default name, which each of its nodes may report differently; name"
            " it with `rabbitmqctl set_cluster_name`"
        )
    return identity


def fingerprint(text: str) -> str:
    """The fingerprint of an identity's text or of an address: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
