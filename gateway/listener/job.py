"""What a listener does with each message, whichever queue it is from."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events import ListenerFailed
from gateway.domain.message import Message, Settlement
from gateway.domain.polling import IdlePolling
from gateway.domain.scaling import ByDepth, Rule
from gateway.listener.errors import text_of
from gateway.listener.items import Format, Item
from gateway.listener.options import ListenerOptions
from gateway.ports import Broker, Observer, WallClock

T = TypeVar("T")

Handler = Callable[[Item[T]], Awaitable[Settlement | None]]
"""
Works on one message. None: it is done, and completed. A settlement is carried out. `EndpointDown`
pauses the listener; after any other error the message comes again, until it is poison. It is
cancelled before the lock of its message ends.
"""


class Subscriber(Protocol[T]):
    """Who wants to know what becomes of the items of one listener. Never raises, never waits."""

    def on_item(self, item: Item[T]) -> None:
        """A handler has done it, and it is settled."""
        ...

    def on_error(self, queue: EntityPath, error: Exception) -> None:
        """A queue couldn't be read, a message not be parsed, settled, or worked on."""
        ...

    def on_completed(self) -> None:
        """The listener has ended."""
        ...


@attrs.frozen(kw_only=True)
class QueueEmpty:
    """A task looked at a queue in vain."""

    queue: EntityPath
    idle_count: int  # looks in a row that found nothing
    tasks: int  # of this queue
    is_fresh: bool  # the task was started for work that others have done meanwhile


@attrs.frozen(kw_only=True)
class Idle:
    """
    When the task looks again, in seconds from when it began the last look, or whether it ends. The
    last task of a queue that nobody announces messages of doesn't end.
    """

    delay: float
    end: bool


OnEmpty = Callable[[QueueEmpty], Idle]


@attrs.frozen(kw_only=True)
class BackOff:
    """The documented answer to an empty queue: look ever more seldom, and end at the maximum."""

    polling: IdlePolling
    rng: random.Random

    def __call__(self, empty: QueueEmpty) -> Idle:
        delay = self.polling.delay(empty.idle_count, self.rng)
        return Idle(delay=delay, end=empty.is_fresh or self.polling.is_longest(delay))


def no_load() -> float:
    """Where nobody measures the processor."""
    return 0.0


@attrs.frozen(kw_only=True)
class Job(Generic[T]):
    """All that the parts of a listener need to know of what it is for."""

    broker: Broker
    account: str
    format: Format[T]
    handle: Handler[T]
    options: ListenerOptions
    clock: WallClock
    rng: random.Random
    observer: Observer
    subscribers: Sequence[Subscriber[T]]
    on_empty: OnEmpty
    on_work: Rule
    load: Callable[[], float]
    measure: Callable[[Message], int]

    def tell_error(self, queue: EntityPath, error: Exception) -> None:
        for subscriber in self.subscribers:
            subscriber.on_error(queue, error)

    def note_failure(self, queue: EntityPath, error: BrokerError) -> None:
        """Tell of something that is tried again."""
        self.observer.report(ListenerFailed(queue=queue, reason=text_of(error)))
        self.tell_error(queue, error)


DEFAULT_RULE: Final = ByDepth()
