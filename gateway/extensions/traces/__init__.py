"""Spans of the operations on each namespace, exported with OpenTelemetry: `[traces]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:TRACES"],
    checks=["options:problems"],
    processes=["process:open_traces"],
    interceptors=["process:SPANS"],
)
