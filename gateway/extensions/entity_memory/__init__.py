"""Applications start in an outage: questions about known queues are answered from memory."""

from typing import Final

from gateway.extensions.extension import Extension

EXTENSION: Final = Extension(package=__name__, wrappers=["feature:FROM_MEMORY"])
