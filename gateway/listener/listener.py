"""
The scalable queue listener: messages of one or several queues, each in the hands of one handler.

    listener = QueueListener(broker=broker, queues="orders", format=Json(Order), handle=handle, ...)
    await nursery.start(listener.run)

A message is completed when its handler has returned, and not before: what is cancelled, or fails,
or ends with the process, comes again. Handlers must bear to see a message twice.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Generic, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.events import Event
from gateway.domain.message import Message
from gateway.domain.scaling import Rule, Shares, parse_weights
from gateway.domain.status import Wake
from gateway.listener.bodies import body_size
from gateway.listener.endpoint import Endpoint
from gateway.listener.items import Format
from gateway.listener.job import DEFAULT_RULE, BackOff, Handler, Job, OnEmpty, Subscriber, no_load
from gateway.listener.ledger import QueueState
from gateway.listener.locks import Locks
from gateway.listener.options import ListenerOptions
from gateway.listener.room import Room
from gateway.listener.station import Station
from gateway.listener.triggers import Subscription, Triggers
from gateway.ports import Broker, Observer, WallClock

T = TypeVar("T")


class Silence:
    """An observer for listeners that nobody watches."""

    def report(self, event: Event) -> None:
        """Nothing is to be done."""


def _weights(queues: str | Mapping[str, int]) -> Mapping[EntityPath, int]:
    """
    Raises:
        InvalidRequest: the text names what is wrong.
    """
    text = queues
    if not isinstance(text, str):
        text = " ".join(f"{name}:{weight}" for name, weight in text.items())
    named = parse_weights(text)
    weights = {EntityPath.parse(name): weight for name, weight in named.items()}
    if len(weights) < len(named):
        raise InvalidRequest(f"queues: a queue is named twice in {text!r}; case doesn't matter")
    return weights


@attrs.define(eq=False, kw_only=True)
class QueueListener(Generic[T]):
    """
    Runs `handle` for each message of `queues`: "orders", or with weights "urgent:8 bulk:2".

    `triggers` announce messages that are enqueued, by `account` and queue. `on_empty` and
    `on_work` replace the documented rules for idle queues and for work detected. `load` says how
    busy the processor is (0 to 1), `measure` how many bytes a message takes.
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
    _stations: list[Station[T]] = attrs.field(factory=list, init=False)
    _is_draining: bool = attrs.field(default=False, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Listen until drained. Cancelled, handlers are too, and their messages come again; what
        is done is settled before. A listener runs once.

        It has started when each queue is open, or couldn't be opened at the first attempt.
        """
        with ExitStack() as subscriptions:
            locks = Locks()
            self._stations = self._open_stations(locks, subscriptions)
            if self._is_draining:
                self.start_drain()
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(locks.run)
                    async with trio.open_nursery() as stations:
                        for station in self._stations:
                            await stations.start(station.run)
                        task_status.started()
                    nursery.cancel_scope.cancel()
            finally:
                self._ended.set()
                for subscriber in self.subscribers:
                    subscriber.on_completed()

    def start_drain(self) -> None:
        """
        Take nothing more, finish what runs within the grace, settle it, and give back the rest;
        then `run` returns.
        """
        self._is_draining = True
        for station in self._stations:
            station.drain()

    async def drain(self) -> None:
        """As `start_drain`; return when `run` is about to. Cancelled, the drain goes on."""
        await trio.lowlevel.checkpoint()
        self.start_drain()
        if self._stations:
            await self._ended.wait()

    async def query_state(self) -> Mapping[EntityPath, QueueState]:
        """How each queue is now. It costs a request for each: for the depth."""
        await trio.lowlevel.checkpoint()
        return {station.queue: await station.query_state() for station in self._stations}

    def states(self) -> Mapping[EntityPath, QueueState]:
        """As `query_state`, but nobody is asked: without the depth."""
        return {station.queue: station.state() for station in self._stations}

    @property
    def wake(self) -> Wake:
        """How an idle queue's messages are noticed now, where the namespace has to be polled."""
        if self.triggers is None or not self.triggers.is_connected:
            return Wake(announced=False, look_every=self.options.idle_max)
        if self.triggers.hears_all_senders:
            return Wake(announced=True, look_every=None)
        return Wake(announced=False, look_every=self.options.sweep)

    def _open_stations(self, locks: Locks, subscriptions: ExitStack) -> list[Station[T]]:
        weights = {path.key: weight for path, weight in self.queues.items()}
        options, job = self.options, self._job()
        room = Room(
            parallel=options.parallel,
            max_held=options.max_held,
            max_bytes=options.max_inflight,
            shares=Shares(weights),
        )
        endpoint = Endpoint(pause=options.endpoint_pause, rng=self.rng)
        return [
            Station(
                job=job,
                queue=path,
                room=room,
                endpoint=endpoint,
                locks=locks,
                bell=self._subscribe(path, subscriptions),
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
        )
