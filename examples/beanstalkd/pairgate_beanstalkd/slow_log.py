"""
`[slow_log]`: an event for each operation on a namespace that takes longer than `longer_than`.

An interceptor, and the table with its option.
"""

from typing import Any, ClassVar, Final

import attrs
from attrs import validators

from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.domain.events.gateway import Event
from gateway.extensions.tables import Table
from gateway.interception import Call, CallKind, Interceptor
from gateway.ports import Observer


@attrs.frozen(kw_only=True)
class SlowLog:
    """`[slow_log]`: without this table no operation is slow."""

    longer_than: float = attrs.field(default=1.0, validator=validators.gt(0.0))  # seconds


@attrs.frozen(kw_only=True)
class SlowOperation(Event):
    """An operation on a namespace took long."""

    namespace: str
    operation: str
    entity: str
    seconds: float


@attrs.frozen
class SlowLogInterceptor(Interceptor):
    """Reports the operations that take longer than `limit` seconds, also those that fail."""

    # Waits for messages are long, and nothing is wrong with them.
    kinds: ClassVar[frozenset[CallKind]] = frozenset(CallKind) - {CallKind.WAIT, CallKind.RECEIVE}

    namespace: str
    limit: float
    observer: Observer

    def after(self, call: Call, result: Any) -> None:
        self._report(call)

    def error(self, call: Call, error: BaseException) -> None:
        self._report(call)

    def _report(self, call: Call) -> None:
        if (seconds := call.seconds()) > self.limit:
            self.observer.report(
                SlowOperation(
                    namespace=self.namespace,
                    operation=call.kind.name.lower(),
                    entity=str(call.entity or ""),
                    seconds=round(seconds, 3),
                )
            )


def _make(place: Place) -> Interceptor | None:
    options = place.config.of(TABLE)
    if options is None:
        return None
    return SlowLogInterceptor(place.namespace.name, options.longer_than, place.runtime.observer)


TABLE: Final = Table[SlowLog | None](name="slow_log", kind=SlowLog | None, missing=None)
ROW: Final = InterceptorRow("slow log", "pairgate_beanstalkd/slow_log.py", "[slow_log]", _make)
