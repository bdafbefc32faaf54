"""A restart that refuses no connection: a process hands its listening sockets to its successor."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(
    package=__name__,
    tables=["options:TAKE_OVER"],
    files=["options:files"],
    successions=["succession:SUCCESSION"],
)
