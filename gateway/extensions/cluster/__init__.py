"""
Gateways that know each other: each settles deliveries that another one holds, on behalf of its own
clients. The processes of a gateway with workers do the same for each other.
"""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:CLUSTER"],
    overrides=["options:with_address"],
    checks=["options:problems"],
    warnings=["options:warnings"],
    peers=["options:knows_peers"],
    others=["joining:make_others"],
)
