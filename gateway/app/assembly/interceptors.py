"""
The interceptors of each namespace, in one list.

`tests/references` prints the list into docs/explanation/architecture.md.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs

from gateway.app.runtime import Runtime
from gateway.app.traces import make_spans
from gateway.config.options import Namespace
from gateway.domain.entity import EntityPath
from gateway.interception import InterceptedBroker, Interceptor
from gateway.listening.announcing import Announcing
from gateway.pairing.drill.cut import Cut
from gateway.ports import Broker
from gateway.store.local.broker import LocalBroker
from gateway.telemetry.abilities import AbilityInterceptor, ReceiveInterceptor, SendInterceptor

Announce = Callable[[EntityPath, int], None]
"""Is called with a queue, and the bytes of the bodies that may have come into it."""


@attrs.frozen(kw_only=True)
class Place:
    """The namespace that interceptors are made for, and its part in this process."""

    namespace: Namespace
    runtime: Runtime
    reports_itself: bool  # a store of this process announces its messages and counts its operations
    is_alone: bool  # there is no pair
    cut: Cut | None  # None: drills aren't allowed
    announce: Announce | None  # None: listeners aren't informed


@attrs.frozen
class InterceptorRow:
    """A feature that does something around each operation on a namespace."""

    name: str
    module: str
    when: str  # the configuration with which it is there; empty: always
    make: Callable[[Place], Interceptor | None]  # None: not at this place


def _spans(place: Place) -> Interceptor | None:
    return make_spans(place.namespace, place.runtime.traces)


def _sends(place: Place) -> Interceptor | None:
    return SendInterceptor(place.runtime.sends) if place.is_alone else None


def _abilities(place: Place) -> Interceptor | None:
    if place.is_alone and place.reports_itself:
        return None
    return AbilityInterceptor(place.runtime.abilities[place.namespace.name])


def _receives(place: Place) -> Interceptor | None:
    return ReceiveInterceptor(place.runtime.abilities[place.namespace.name])


def _drill(place: Place) -> Interceptor | None:
    return place.cut


def _announcements(place: Place) -> Interceptor | None:
    if place.announce is None or place.reports_itself:
        return None
    return Announcing(place.announce)


# A store of this process counts its operations and announces its messages by itself.
REMOTE: Final = "a namespace that is no store of this process"
_WATCH: Final = "gateway/telemetry/abilities.py"
# From the client to the adapter. What a drill refuses is measured as a failure of the namespace,
# and never announced.
INTERCEPTORS: Final[Sequence[InterceptorRow]] = (
    InterceptorRow("traces", "gateway/telemetry/spans.py", "[traces]", _spans),
    InterceptorRow("sends", _WATCH, "no [pairing]", _sends),
    InterceptorRow("abilities", _WATCH, f"[pairing], or {REMOTE}", _abilities),
    InterceptorRow("receives", _WATCH, "", _receives),
    InterceptorRow("drill", "gateway/pairing/drill/cut.py", "[drill] and [pairing]", _drill),
    InterceptorRow("announcements", "gateway/listening/announcing.py", REMOTE, _announcements),
)


@attrs.frozen(kw_only=True)
class Interception:
    """Puts the interceptors around each namespace of a process."""

    runtime: Runtime
    is_alone: bool = False  # there is no pair
    cuts: Mapping[str, Cut] = attrs.field(factory=dict)  # by namespace
    announce: Announce | None = None
    announced: Collection[str] = ()  # the namespaces whose messages are announced
    rows: Sequence[InterceptorRow] = INTERCEPTORS

    def around(self, adapter: Broker, namespace: Namespace) -> InterceptedBroker:
        """The open namespace, with the interceptors of its place around it."""
        name = namespace.name
        place = Place(
            namespace=namespace,
            runtime=self.runtime,
            reports_itself=isinstance(adapter, LocalBroker),
            is_alone=self.is_alone,
            cut=self.cuts.get(name),
            announce=self.announce if name in self.announced else None,
        )
        made = [each for row in self.rows if (each := row.make(place)) is not None]
        address = self.runtime.abilities[name].address
        return InterceptedBroker(adapter, made, address=address)
