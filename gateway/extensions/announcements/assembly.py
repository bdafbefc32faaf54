"""Where a process announces new messages: around remote namespaces, and to a topic."""

from collections.abc import Iterable
from typing import Final

from gateway.app.assembly.interceptor_rows import REMOTE, InterceptorRow, Place
from gateway.app.assembly.opening import SettingUp
from gateway.app.assembly.parts import ProcessParts
from gateway.app.assembly.roles import LEADING, Role
from gateway.app.assembly.services import ServiceRow
from gateway.domain.entity import EntityPath
from gateway.extensions.announcements.interceptor import Announcing
from gateway.extensions.announcements.options import TRIGGERS
from gateway.extensions.announcements.trigger_topic import TopicAnnouncer
from gateway.interception import Interceptor
from gateway.ports import Broker, Service


def _announcing(place: Place) -> Interceptor | None:
    if place.announce is None or place.reports_itself:
        return None
    return Announcing(place.announce)


async def _announcer(parts: ProcessParts) -> Iterable[Service]:
    """
    Sends the announcements to the topic of `[triggers]`, directly to its namespace, whether or not
    that is open already: triggers are never diverted.
    """
    plan, triggers = parts.plan, parts.plan.config.of(TRIGGERS)
    if triggers is None or parts.announcements is None:
        return []
    name, opening = triggers.namespace or plan.config.home.name, SettingUp(plan.stack, plan.runtime)
    keeper: Broker | None = parts.opened.by_name.get(name)
    if keeper is None:
        keeper = await opening.enter(plan.config.namespaces[name])
    announcer = TopicAnnouncer(
        broker=keeper,
        topic=EntityPath(triggers.topic),
        announcements=parts.announcements,
        window=triggers.window,
        time_to_live=triggers.time_to_live,
        observer=plan.runtime.observer,
        rng=plan.runtime.rng("announcer"),
    )
    return [announcer, *opening.late]


ANNOUNCING: Final = InterceptorRow(
    "announcements",
    "gateway/extensions/announcements/interceptor.py",
    REMOTE,
    _announcing,
    is_measured=True,
)
ANNOUNCER: Final = ServiceRow("announcements", LEADING | {Role.SYPHON}, _announcer)
