"""Listeners learn of new messages: by the endpoint `admin`, and by the topic of `[triggers]`."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["configuration:TRIGGERS"],
    apart=["configuration:keepers"],
    completions=["configuration:completed"],
    checks=["configuration:problems"],
)
