"""
The services of each process, in one list: what runs as long as the process, in which roles.

Those of a gateway's endpoints are in `serving`, those of operators' endpoints in `process_admin`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, Final

import attrs

from gateway.app.assembly.parts import Parts, ProcessParts
from gateway.app.assembly.records import OwnFigures, services_of_records
from gateway.app.assembly.roles import GATEWAY, LEADING, Role
from gateway.domain.failover import State
from gateway.extensions.listing import parts as parts_of_extensions
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.ports import Service
from gateway.telemetry.stalls import StallWatch

Make = Callable[[Any], Awaitable[Iterable[Service]]]
"""Gets the parts of a process of such a role; raises `Failure` if a service can't be made."""


@attrs.frozen
class ServiceRow:
    """A feature, and the roles of the processes in which its services run."""

    name: str
    roles: Collection[Role]
    make: Make


def ready(find: Callable[[Parts], Iterable[Service | None]]) -> Make:
    """Services that are among the parts of a gateway already; None: not with this configuration."""

    async def make(parts: Parts) -> Iterable[Service]:
        return [service for service in find(parts) if service is not None]

    return make


async def _syphons(parts: ProcessParts) -> Iterable[Service]:
    return parts.syphons


async def _records(parts: ProcessParts) -> Iterable[Service]:
    """The records know the syphon of the backlog. No other process empties the spool."""
    if parts.records is None or parts.control is None:
        return []
    syphon = next((each for each in parts.syphons if each.reports_progress), None)
    gateway = _own_figures(parts) if isinstance(parts, Parts) else OwnFigures()
    return services_of_records(parts.records, parts.control, syphon, gateway)


def _own_figures(parts: Parts) -> OwnFigures:
    return OwnFigures(
        workers=parts.workers,
        spool=parts.spool,
        drills=lambda: [each for one in parts.features.values() for each in one.in_force()],
        troubled=lambda: _troubled(parts),
        stalls=_stalls(parts),
    )


def _stalls(parts: Parts) -> StallWatch | None:
    """The stalls of the sends of this process; None: others send, or there is no pair."""
    if parts.pair is None or parts.plan.role is not Role.ALONE:
        return None
    watch = StallWatch(parts.pair.broker.sends)
    for each in parts.pair.states.troubled():
        watch.record_state(each.entity.key, each.state)
    parts.plan.runtime.observer.followers.append(watch.record)
    return watch


def _troubled(parts: Parts) -> int | None:
    if parts.pair is None:
        return None
    return sum(each.state is not State.PINNED for each in parts.pair.states.troubled())


async def _late(parts: ProcessParts) -> Iterable[Service]:
    return parts.plan.opening.late


async def _of_process(parts: ProcessParts) -> Iterable[Service]:
    runtime = parts.plan.runtime
    return [runtime.loop_lag, runtime.service_manager, runtime.audits]


async def _opened(parts: ProcessParts) -> Iterable[Service]:
    return parts.plan.runtime.opened.values()


# The services start in this order, and all end together.
_OWN: Final[Sequence[ServiceRow]] = (
    ServiceRow("pair", GATEWAY, ready(lambda parts: [parts.pair])),
    ServiceRow("other processes", GATEWAY, ready(lambda parts: parts.others.services())),
    ServiceRow("operators' orders", LEADING, ready(lambda parts: [parts.control])),
    ServiceRow("leases", GATEWAY, ready(lambda parts: [parts.own_leases])),
    ServiceRow("visibility", LEADING, ready(lambda parts: [_leased(parts)])),
    # Before the syphons, which move nothing that an order holds back.
    ServiceRow("records", LEADING | {Role.SYPHON}, _records),
    ServiceRow("syphons", LEADING | {Role.SYPHON}, _syphons),
    ServiceRow("known queues", LEADING, ready(lambda parts: [parts.topology, parts.upkeep])),
    ServiceRow("wrappers", GATEWAY | {Role.SYPHON}, ready(lambda parts: parts.for_wrappers)),
    ServiceRow("refusals", GATEWAY, ready(lambda parts: [parts.refusals])),
    ServiceRow("identity providers", GATEWAY, ready(lambda parts: [parts.issuers])),
    ServiceRow("certificates", LEADING, ready(lambda parts: [parts.certificates])),
    ServiceRow("process", GATEWAY, _of_process),
    ServiceRow("opened by extensions", GATEWAY | {Role.SYPHON}, _opened),
    ServiceRow("late setup", LEADING, _late),
)


def _leased(parts: Parts) -> Service | None:
    return parts.held if isinstance(parts.held, LeasedVisibility) else None


@cache
def services() -> Sequence[ServiceRow]:
    """All rows: those of the core, then those of extensions."""
    added: Sequence[ServiceRow] = parts_of_extensions("services")
    return (*_OWN, *added)


async def services_of(role: Role, parts: object) -> list[Service]:
    """
    The services of a process of this role with these parts; none runs yet.

    Raises:
        Failure: a service can't be made.
    """
    mine = [row for row in services() if role in row.roles]
    return [service for row in mine for service in await row.make(parts)]
