"""The trace context of a message: the application properties of W3C, and Azure's older one."""

from typing import Final

TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_CONTEXT: Final = {
    "traceparent": TRACEPARENT,
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "Diagnostic-Id": TRACEPARENT,
}
