"""A row of the list of interceptors, and the place that its interceptor is made for."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from gateway.app.assembly.parts import Feature
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Namespace
from gateway.domain.entity import EntityPath
from gateway.interception import Interceptor

# A store of this process counts its operations and announces its messages by itself.
REMOTE: Final = "a namespace that is no store of this process"

Announce = Callable[[EntityPath, int], None]
"""Is called with a queue, and the bytes of the bodies that may have come into it."""


@attrs.frozen(kw_only=True)
class Place:
    """The namespace that interceptors are made for, and its part in this process."""

    config: Config
    namespace: Namespace
    runtime: Runtime
    reports_itself: bool  # a store of this process announces its messages and counts its operations
    is_alone: bool  # there is no pair
    features: Mapping[str, Feature]  # of extensions, by their names
    announce: Announce | None  # None: listeners aren't informed


@attrs.frozen
class InterceptorRow:
    """A feature that does something around each operation on a namespace."""

    name: str
    module: str
    when: str  # the configuration with which it is there; empty: always
    make: Callable[[Place], Interceptor | None]  # None: not at this place
    # True: the core measures what it does as the doing of the namespace.
    is_measured: bool = False
