"""A restart that refuses no connection: a process hands its listening sockets to its successor."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(package=__name__, successions=["succession:SUCCESSION"])
