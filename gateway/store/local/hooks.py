"""The calls that a store of this process makes, besides storing."""

from collections.abc import Callable

import attrs

from gateway.domain.billing import Operation
from gateway.domain.entity import EntityPath
from gateway.ports import Observer
from gateway.store.local.recent import Recent


@attrs.frozen(kw_only=True)
class LocalHooks:
    """Called by a `LocalBroker`, which gets them when it is made; None: nobody needs it."""

    observer: Observer | None = None
    # With a queue's path whenever a message in it becomes available.
    announce: Callable[[EntityPath], None] | None = None
    heard: Callable[[Operation], None] | None = None  # with each operation
    recent: Recent | None = None  # for clients that name messages by id
