"""
The scalable queue listener: messages of one or several queues, each handled by one handler at a
time.

    listener = QueueListener(broker=broker, queues="orders", format=Json(Order), handle=handle, ...)
    await nursery.start(listener.run)

A message is completed only after its handler has returned: a message whose handler is cancelled or
fails, or ends with the process, is delivered again. Handlers must be idempotent.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Generic, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.events.gateway import Event
from gateway.domain.message import Message
from gateway.domain.status.listening import Wake
from gateway.listening.concurrency_limiter import ConcurrencyLimiter
from gateway.listening.consumer_stats import QueueState
from gateway.listening.endpoint import HandlerEndpoint
from gateway.listening.items import Format, body_size
from gateway.listening.job import (
    DEFAULT_RULE,
    BackOff,
    Handler,
    Job,
    OnEmpty,
    Subscriber,
    no_load,
    wait_for_it,
)
from gateway.listening.locks import LockRenewals
from gateway.listening.options import ListenerOptions
from gateway.listening.queue_consumer import QueueConsumer
from gateway.listening.scaling.concurrency import Rule, Shares, parse_weights
from gateway.listening.triggers import Subscription, Triggers
from gateway.ports import Broker, Observer, WallClock

T = TypeVar("T")

# Queues, at the start and after the loss of a connection: each open is a request or more.
OPENED_AT_ONCE: Final = 50


class Silence:
    """An observer that ignores all events."""

    def report(self, event: Event) -> None:
        """Ignore the event."""


def _weights(queues: str | Mapping[str, int]) -> Mapping[EntityPath, int]:
    """
    The weight of each queue.

    Raises:
        InvalidRequest: the text names the problem.
    """
    text = queues
    if not isinstance(text, str):
        text = " ".join(f"{name}:{weight}" for name, weight in text.items())
    named = parse_weights(text)
    weights = {EntityPath.parse(name): weight for name, weight in named.items()}
    if len(weights) < len(named):
        raise InvalidRequest(
            f"queues: a queue is named twice in {text!r}; names differ by more than case"
        )
    return weights


@attrs.define(eq=False, kw_only=True)
class QueueListener(Generic[T]):
    """
    Runs `handle` for each message of `queues`: "orders", or with weights "urgent:8 bulk:2".

    `triggers` announce enqueued messages, by `account` and queue. `on_empty` and `on_work` replace
    the documented rules for idle queues and for detected work. `load` returns the processor's load
    (0 to 1), `measure` a message's size in bytes. `on_missing` is called each time that a queue
    doesn't exist; the listener tries again.
    """

    broker: Broker
    queues: Mapping[EntityPath, int] = attrs.field(converter=_weights)
    format: Format[T]
    handle: Handler[T]
    clock: WallClock
    rng: random.Random
    options: ListenerOptions = attrs.field(factory=ListenerOptions)
    account: str = ""
    observer: Observer = attrs.field(factory=Silence)
    subscribers: Sequence[Subscriber[T]] = ()
    triggers: Triggers | None = None
    on_empty: OnEmpty | None = None
    on_work: Rule = DEFAULT_RULE
    load: Callable[[], float] = no_load
    measure: Callable[[Message], int] = body_size
    on_missing: Callable[[EntityPath], None] = wait_for_it
    _consumers: list[QueueConsumer[T]] = attrs.field(factory=list, init=False)
    _is_draining: bool = attrs.field(default=False, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Listen until drained. A cancellation also cancels handlers, whose messages are delivered
        again; handled messages are settled before. A listener runs once.

        The listener has started when each queue is open, or couldn't be opened at the first
        attempt.
        """
        with ExitStack() as subscriptions:
            locks = LockRenewals()
            self._consumers = self._open_consumers(locks, subscriptions)
            if self._is_draining:
                self.start_drain()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(locks.run)
                    async with trio.open_nursery() as consumers:
                        await self._start_all(consumers)
                        task_status.started()
                    nursery.cancel_scope.cancel()
            finally:
                self._ended.set()
                for subscriber in self.subscribers:
                    subscriber.on_completed()

    async def _start_all(self, nursery: trio.Nursery) -> None:
        """Return when each queue is open, or couldn't be opened at the first attempt."""
        async with trio.open_nursery() as starting:
            for consumer in self._consumers:
                starting.start_soon(nursery.start, consumer.run)

    def start_drain(self) -> None:
        """
        Receive nothing more, let running handlers finish within the grace, settle their messages,
        and abandon the others; then `run` returns.
        """
        self._is_draining = True
        for consumer in self._consumers:
            consumer.drain()

    async def drain(self) -> None:
        """
        As `start_drain`; return when `run` is about to. After a cancellation the drain continues.
        """
        await trio.lowlevel.checkpoint()
        self.start_drain()
        if self._consumers:
            await self._ended.wait()

    async def query_state(self) -> Mapping[EntityPath, QueueState]:
        """The present state of each queue. Costs one request per queue, for its depth."""
        await trio.lowlevel.checkpoint()
        return {consumer.queue: await consumer.query_state() for consumer in self._consumers}

    def states(self) -> Mapping[EntityPath, QueueState]:
        """As `query_state`, without requests and without the depth."""
        return {consumer.queue: consumer.state() for consumer in self._consumers}

    @property
    def wake(self) -> Wake:
        """
        The way that an idle queue's messages are noticed now, if the namespace must be polled.
        """
        if self.triggers is None or not self.triggers.is_connected:
            return Wake(announced=False, poll_every=self.options.idle_max)
        if self.triggers.hears_all_senders:
            return Wake(announced=True, poll_every=None)
        return Wake(announced=False, poll_every=self.options.sweep)

    def _open_consumers(
        self, locks: LockRenewals, subscriptions: ExitStack
    ) -> list[QueueConsumer[T]]:
        weights = {path.key: weight for path, weight in self.queues.items()}
        options, job = self.options, self._job()
        limiter = ConcurrencyLimiter(
            parallel=options.parallel,
            max_locked=options.max_locked,
            max_bytes=options.max_inflight,
            shares=Shares(weights),
        )
        endpoint = HandlerEndpoint(pause=options.endpoint_pause, rng=self.rng)
        opening = trio.CapacityLimiter(OPENED_AT_ONCE)
        return [
            QueueConsumer(
                job=job,
                queue=path,
                limiter=limiter,
                endpoint=endpoint,
                locks=locks,
                subscription=self._subscribe(path, subscriptions),
                opening=opening,
            )
            for path in self.queues
        ]

    def _subscribe(self, queue: EntityPath, subscriptions: ExitStack) -> Subscription:
        if self.triggers is None:
            return Subscription()
        return subscriptions.enter_context(self.triggers.subscribe(self.account, queue))

    def _job(self) -> Job[T]:
        return Job(
            broker=self.broker,
            account=self.account,
            format=self.format,
            handle=self.handle,
            options=self.options,
            clock=self.clock,
            rng=self.rng,
            observer=self.observer,
            subscribers=self.subscribers,
            on_empty=self.on_empty or BackOff(polling=self.options.polling, rng=self.rng),
            on_work=self.on_work,
            load=self.load,
            measure=self.measure,
            on_missing=self.on_missing,
        )
