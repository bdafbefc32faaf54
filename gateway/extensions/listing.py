"""
The list of extensions. Without its line here and its folder, a feature is gone, and the core works.

The order is that of wrappers and interceptors, from the client to the namespace.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from gateway.extensions.announcements import EXTENSION as ANNOUNCEMENTS
from gateway.extensions.claims import EXTENSION as CLAIMS
from gateway.extensions.cluster import EXTENSION as CLUSTER
from gateway.extensions.drill import EXTENSION as DRILL
from gateway.extensions.entity_memory import EXTENSION as ENTITY_MEMORY
from gateway.extensions.extension import Extension
from gateway.extensions.faults import EXTENSION as FAULTS
from gateway.extensions.hedging import EXTENSION as HEDGING
from gateway.extensions.ledger import EXTENSION as LEDGER
from gateway.extensions.move import EXTENSION as MOVE
from gateway.extensions.order import EXTENSION as ORDER
from gateway.extensions.outage_report import EXTENSION as OUTAGE_REPORT
from gateway.extensions.purge import EXTENSION as PURGE
from gateway.extensions.receive_in_outage import EXTENSION as RECEIVE_IN_OUTAGE
from gateway.extensions.redrive import EXTENSION as REDRIVE
from gateway.extensions.sharding import EXTENSION as SHARDING
from gateway.extensions.sidecar import EXTENSION as SIDECAR
from gateway.extensions.take_over import EXTENSION as TAKE_OVER
from gateway.extensions.traces import EXTENSION as TRACES
from gateway.extensions.workers import EXTENSION as WORKERS

EXTENSIONS: Final[Sequence[Extension]] = (
    TRACES,
    CLAIMS,
    SHARDING,
    MOVE,  # each shard is an entity of its own
    ORDER,
    RECEIVE_IN_OUTAGE,
    ENTITY_MEMORY,
    HEDGING,
    REDRIVE,
    PURGE,
    LEDGER,
    FAULTS,
    DRILL,  # what it refuses is never announced
    OUTAGE_REPORT,
    ANNOUNCEMENTS,
    CLUSTER,
    TAKE_OVER,
    WORKERS,
    SIDECAR,
)

ENTRY_POINTS: Final = "pairgate.extensions"
"""The group in which an installed distribution names an `Extension` of its own."""


@cache
def extensions() -> Sequence[Extension]:
    """The extensions of the list, then those of installed distributions, by name."""
    # Imported here: the command line, which starts without it, would take a third longer.
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name)
    return (*EXTENSIONS, *(each.load() for each in found))


@cache
def parts(point: str) -> Sequence[Any]:
    """The parts of all extensions at that point, a field of `Extension`; imported at first use."""
    return tuple(part for extension in extensions() for part in extension.load(point))


def commands(of: Sequence[Extension] = EXTENSIONS) -> Mapping[str, str]:
    """The commands of these extensions, by their names: `MODULE:FUNCTION`."""
    return {
        name: f"{extension.package}.{part}"
        for extension in of
        for name, (part, _) in extension.commands.items()
    }


def summaries(of: Sequence[Extension]) -> Mapping[str, str]:
    """The first sentence of the help of these extensions' commands, by their names."""
    return {name: text for extension in of for name, (_, text) in extension.commands.items()}
