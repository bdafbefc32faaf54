"""The export of a process's spans, and the interceptor that makes the spans of a namespace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway import __version__
from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.config.options import Config, Namespace
from gateway.config.places import authority_of
from gateway.extensions.traces import EXTENSION
from gateway.extensions.traces.options import TRACES
from gateway.interception import Interceptor
from gateway.ports import Observer

if TYPE_CHECKING:
    from gateway.extensions.traces.export import TraceExport


@contextmanager
def open_traces(config: Config, observer: Observer) -> "Iterator[TraceExport | None]":
    """
    The export of this process's spans, for the life of the context; None: spans aren't exported.
    """
    traces = config.of(TRACES)
    if traces is None:
        yield None
        return
    # Imported here, as it is an extra, whose import takes as long as the rest of the gateway.
    from gateway.extensions.traces.export import TraceExport

    export = TraceExport(
        endpoint=traces.endpoint,
        sample_ratio=traces.sample_ratio,
        service_name=traces.service_name,
        version=__version__,
        observer=observer,
    )
    try:
        yield export
    finally:
        export.close()


def _make_spans(place: Place) -> Interceptor | None:
    if EXTENSION.name not in place.runtime.opened:
        return None
    from gateway.extensions.traces.export import TraceExport
    from gateway.extensions.traces.spans import SpanInterceptor, SpanMaker

    export = place.runtime.opened[EXTENSION.name]
    assert isinstance(export, TraceExport), "`open_traces` has opened it"
    system, address = _system_of(place.namespace), authority_of(place.namespace)
    return SpanInterceptor(SpanMaker(tracer=export.tracer, system=system, address=address))


def _system_of(namespace: Namespace) -> str:
    """`messaging.system`, a name of the conventions where there is one."""
    kind = namespace.url.partition(":")[0].partition("+")[0]
    names = {
        "amqp": "amqp",
        "amqps": "amqp",
        "rabbitmq": "rabbitmq",
        "rabbitmqs": "rabbitmq",
        "servicebus": "servicebus",
        "storage-queue": "azure_storage_queue",
    }
    return names.get(kind, "pairgate")


SPANS: Final = InterceptorRow(
    "traces", "gateway/extensions/traces/spans.py", "[traces]", _make_spans
)
