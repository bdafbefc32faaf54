"""The traces of a process, if they are configured."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from gateway.config.options import Config, Namespace
from gateway.config.places import authority_of
from gateway.interception import Interceptor
from gateway.ports import Observer

if TYPE_CHECKING:
    from gateway.telemetry.trace_export import TraceExport


@contextmanager
def open_traces(config: Config, observer: Observer) -> "Iterator[TraceExport | None]":
    """
    The export of this process's spans, for the life of the context; None: spans aren't exported.
    """
    traces = config.traces
    if traces is None:
        yield None
        return
    # Imported here, as it is an extra, whose import takes as long as the rest of the gateway.
    from gateway.telemetry.trace_export import TraceExport

    export = TraceExport(
        endpoint=traces.endpoint,
        sample_ratio=traces.sample_ratio,
        service_name=traces.service_name,
        version=metadata.version("pairgate"),
        observer=observer,
    )
    try:
        yield export
    finally:
        export.close()


def make_spans(namespace: Namespace, export: "TraceExport | None") -> Interceptor | None:
    """The interceptor that makes the spans of a namespace's operations, if there is an export."""
    if export is None:
        return None
    from gateway.telemetry.spans import SpanInterceptor, SpanMaker

    return SpanInterceptor(
        SpanMaker(
            tracer=export.tracer, system=_system_of(namespace), address=authority_of(namespace)
        )
    )


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
