"""
The export of spans over OTLP/HTTP, in a thread of its own: it delays no message, and drops spans
that it can't deliver.
"""

import logging
import threading
from typing import Final

import attrs
import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import Tracer

from gateway.extensions.traces.events import TracesNotExported
from gateway.ports import Observer

LOOK_EVERY: Final = 5.0  # seconds: one event tells of the failures since the last one
LAST_SECONDS: Final = 2.0  # for the last spans, when the process ends
REQUEST_SECONDS: Final = 5.0  # half of the SDK's default: spans mustn't delay the next ones
_NAME: Final = "opentelemetry"


class _ExportFailures(logging.Handler):
    """
    Collects the SDK's log records, from any of its threads: the SDK must not write to the log.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []
        self._counted = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Note the record."""
        with self._counted:
            self._texts.append(record.getMessage())
            del self._texts[:-1]

    def pop(self) -> str | None:
        """The last text since the last call."""
        with self._counted:
            return self._texts.pop() if self._texts else None


@attrs.define(eq=False, kw_only=True)
class TraceExport:
    """
    The way of spans to their endpoint. `close` must be called; it waits for `LAST_SECONDS` at most.
    """

    endpoint: str
    sample_ratio: float
    service_name: str
    version: str
    observer: Observer
    _provider: TracerProvider = attrs.field(init=False)
    _failures: _ExportFailures = attrs.field(factory=_ExportFailures, init=False)

    def __attrs_post_init__(self) -> None:
        logger = logging.getLogger(_NAME)
        logger.addHandler(self._failures)
        logger.propagate = False
        resource = Resource.create(
            {"service.name": self.service_name, "service.version": self.version}
        )
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(self.sample_ratio),
            resource=resource,
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=self.endpoint, timeout=REQUEST_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    @property
    def tracer(self) -> Tracer:
        schema = Schemas.V1_44_0.value
        return self._provider.get_tracer("pairgate", self.version, schema_url=schema)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report failed exports until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(LOOK_EVERY)
            if (reason := self._failures.pop()) is not None:
                self.observer.report(
                    TracesNotExported(endpoint=self.endpoint, reason=" ".join(reason.split())[:200])
                )

    def close(self) -> None:
        """Export the last spans, as far as the time suffices."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(LAST_SECONDS)
        logging.getLogger(_NAME).removeHandler(self._failures)
