"""The processing of a listener's messages: the settings that all its queues share."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.domain.events.gateway import ListenerFailed
from gateway.domain.message import Message, Settlement
from gateway.listening.errors import text_of
from gateway.listening.items import Format, Item
from gateway.listening.options import ListenerOptions
from gateway.listening.scaling.concurrency import ByDepth, Rule
from gateway.listening.scaling.polling import IdlePolling
from gateway.ports import Broker, Observer, WallClock

T = TypeVar("T")

Handler = Callable[[Item[T]], Awaitable[Settlement | None]]
"""
Handles one message. None: the message is done, and is completed. A settlement is carried out.
`EndpointDown` pauses the listener; after any other error the message is delivered again, until it
is poison. The handler is cancelled before the message's lock expires.
"""


class Subscriber(Protocol[T]):
    """An observer of the items of one listener. Its methods never raise and never block."""

    def on_item(self, item: Item[T]) -> None:
        """Called when a handler has processed the item, and the item is settled."""
        ...

    def on_error(self, queue: EntityPath, error: Exception) -> None:
        """
        Called when a queue couldn't be received from, or a message couldn't be parsed, settled or
        handled.
        """
        ...

    def on_completed(self) -> None:
        """Called when the listener has ended."""
        ...


@attrs.frozen(kw_only=True)
class QueueEmpty:
    """A receive found no message."""

    queue: EntityPath
    idle_count: int  # receives in a row that found nothing
    tasks: int  # of this queue
    is_fresh: bool  # the task was started for messages that other tasks have handled meanwhile


@attrs.frozen(kw_only=True)
class Idle:
    """
    The seconds from the start of the task's last receive to its next one, or the end of the task.
    The last task of a queue without announcements never ends.
    """

    delay: float
    end: bool


OnEmpty = Callable[[QueueEmpty], Idle]


@attrs.frozen(kw_only=True)
class BackOff:
    """
    The documented reaction to an empty queue: receive ever less often, and end at the maximum.
    """

    polling: IdlePolling
    rng: random.Random

    def __call__(self, empty: QueueEmpty) -> Idle:
        delay = self.polling.delay(empty.idle_count, self.rng)
        return Idle(delay=delay, end=empty.is_fresh or self.polling.is_longest(delay))


def wait_for_it(queue: EntityPath) -> None:
    """Retry a missing queue until it exists."""


def no_load() -> float:
    """Used if the processor's load isn't measured."""
    return 0.0


@attrs.frozen(kw_only=True)
class Job(Generic[T]):
    """The settings of a listener that all its parts need."""

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
    on_missing: Callable[[EntityPath], None]

    def report_error(self, queue: EntityPath, error: Exception) -> None:
        for subscriber in self.subscribers:
            subscriber.on_error(queue, error)

    def report_failure(self, queue: EntityPath, error: BrokerError) -> None:
        """Report a failure that is retried."""
        self.observer.report(ListenerFailed(queue=queue, reason=text_of(error)))
        self.report_error(queue, error)
        if isinstance(error, EntityNotFound):
            self.on_missing(queue)


DEFAULT_RULE: Final = ByDepth()
