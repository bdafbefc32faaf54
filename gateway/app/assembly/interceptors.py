"""
The interceptors of each namespace, in one list.

`tests/references` prints the list into docs/explanation/architecture.md.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Final

import attrs

from gateway.app.assembly.interceptor_rows import REMOTE, Announce, InterceptorRow, Place
from gateway.app.assembly.parts import Feature
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Namespace
from gateway.extensions.listing import parts
from gateway.interception import Interceptor
from gateway.interception.broker import InterceptedBroker
from gateway.ports import Broker
from gateway.store.local.broker import LocalBroker
from gateway.telemetry.abilities import AbilityInterceptor, ReceiveInterceptor, SendInterceptor


def _sends(place: Place) -> Interceptor | None:
    if not place.is_alone:
        return None
    watch = place.runtime.abilities[place.namespace.name] if place.reports_itself else None
    return SendInterceptor(place.runtime.sends, watch)


def _abilities(place: Place) -> Interceptor | None:
    if place.is_alone and place.reports_itself:
        return None
    return AbilityInterceptor(place.runtime.abilities[place.namespace.name])


def _receives(place: Place) -> Interceptor | None:
    return ReceiveInterceptor(place.runtime.abilities[place.namespace.name])


_WATCH: Final = "gateway/telemetry/abilities.py"
_MEASURES: Final[Sequence[InterceptorRow]] = (
    InterceptorRow("sends", _WATCH, "no [pairing]", _sends),
    InterceptorRow("abilities", _WATCH, f"[pairing], or {REMOTE}", _abilities),
    InterceptorRow("receives", _WATCH, "", _receives),
)


@cache
def interceptors() -> Sequence[InterceptorRow]:
    """All rows, from the client to the adapter."""
    added: Sequence[InterceptorRow] = parts("interceptors")
    return (
        *(row for row in added if not row.is_measured),
        *_MEASURES,
        *(row for row in added if row.is_measured),
    )


@attrs.frozen(kw_only=True)
class Interception:
    """Puts the interceptors around each namespace of a process."""

    config: Config
    runtime: Runtime
    is_alone: bool = False  # there is no pair
    features: Mapping[str, Feature] = attrs.field(factory=dict)  # of extensions, by their names
    announce: Announce | None = None
    announced: Collection[str] = ()  # the namespaces whose messages are announced
    rows: Sequence[InterceptorRow] = attrs.field(factory=interceptors)

    def around_all(self, adapters: Mapping[str, Broker]) -> Mapping[str, InterceptedBroker]:
        """The open namespaces, by name, each with its interceptors."""
        namespaces = self.config.namespaces
        return {name: self.around(each, namespaces[name]) for name, each in adapters.items()}

    def around(self, adapter: Broker, namespace: Namespace) -> InterceptedBroker:
        """The open namespace, with the interceptors of its place around it."""
        name = namespace.name
        place = Place(
            config=self.config,
            namespace=namespace,
            runtime=self.runtime,
            reports_itself=isinstance(adapter, LocalBroker),
            is_alone=self.is_alone,
            features=self.features,
            announce=self.announce if name in self.announced else None,
        )
        made = [each for row in self.rows if (each := row.make(place)) is not None]
        address = self.runtime.abilities[name].address
        return InterceptedBroker(adapter, made, address=address)
