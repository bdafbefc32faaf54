"""
`pairgate bench`: a load of its own against a gateway or a namespace, and the duration of each step.

Its messages are marked. A receiver that meets another message abandons it and ends the run, so that
no message of others is lost.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from itertools import count
from math import ceil, inf
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import is_own
from gateway.app.operations.targets import OpenNamespace
from gateway.app.operations.ways_in import NamespaceChoice, open_place
from gateway.app.runtime import Runtime
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.health.distribution import Distribution, Histogram
from gateway.domain.message import Abandon, Complete, Delivery, Message
from gateway.ports import Receiver

MARK: Final = "pairgate-bench-"
LIFE: Final = timedelta(minutes=10)  # of a message that is never received
ANSWER_SECONDS: Final = 30.0
QUIET: Final = 2.0  # seconds without a message after which the queue counts as empty
ERROR_PAUSE: Final = 0.1  # seconds after an error, so that a refusal isn't a busy loop
# Each bound is 3 % above the previous bound, so that a percentile is too high by 3 % at most.
BOUNDS: Final = tuple(1e-5 * 1.03**number for number in range(550))
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@attrs.frozen(kw_only=True)
class LoadPlan:
    """The load that a run makes."""

    entity: EntityPath
    sends: bool
    receives: bool
    connections: int
    in_flight: int  # sends of each connection that are in progress together, or its deliveries
    size: int  # bytes of a body
    seconds: float  # the longest time to send or, without sends, to receive
    count: int | None  # messages at most, of all connections; None: no limit


@attrs.define(eq=False)
class Latencies:
    """The durations of one kind of step, in seconds."""

    largest: float = attrs.field(default=0.0, init=False)
    _histogram: Histogram = attrs.field(factory=partial(Histogram, BOUNDS), init=False)

    def record(self, seconds: float) -> None:
        self._histogram.record(seconds)
        self.largest = max(self.largest, seconds)

    def figures(self) -> dict[str, float] | None:
        """Mean, percentiles and maximum; None: there was no such step."""
        found = self._histogram.read()
        if not found.count:
            return None
        percentiles = {
            name: min(quantile(found, share), self.largest) for name, share in QUANTILES.items()
        }
        return {"mean": found.total / found.count, **percentiles, "max": self.largest}


def quantile(found: Distribution, share: float) -> float:
    """The bound below which that share of the values is; infinite above the last one."""
    wanted, seen = ceil(share * found.count), 0
    for bound, times in zip(found.bounds, found.counts, strict=False):
        seen += times
        if seen >= wanted:
            return bound
    return inf


@attrs.define(eq=False)
class RunFigures:
    """The figures of a run until now."""

    target: str = ""
    sent: int = 0  # messages that were accepted
    received: int = 0  # and completed
    errors: Counter[str] = attrs.field(factory=Counter)  # by their class
    send_seconds: float = 0.0  # that the senders took
    receive_seconds: float = 0.0  # from the first message to the last
    sends: Latencies = attrs.field(factory=Latencies)
    completions: Latencies = attrs.field(factory=Latencies)
    journeys: Latencies = attrs.field(factory=Latencies)  # from the begin of a send to its receipt
    last_error: str = ""

    def record_error(self, error: BrokerError | None) -> None:
        """Count an error; None: there was no answer in time."""
        self.errors["NoAnswer" if error is None else type(error).__name__] += 1
        self.last_error = f"no answer within {ANSWER_SECONDS:g} s" if error is None else str(error)


async def bench(
    config: Config,
    runtime: Runtime,
    place: NamespaceChoice,
    plan: LoadPlan,
    figures: RunFigures,
    *,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """
    Run the load to its end, and count in `figures`. `beside` runs until then.

    Raises:
        Failure: the place can't be opened, or the queue has messages of others.
    """
    async with AsyncExitStack() as stack:
        targets = await _open(stack, config, runtime, place, plan)
        figures.target = targets[0][0].name
        run = _BenchRun(plan=plan, figures=figures, name=f"{MARK}{runtime.new_id()[:8]}-")
        async with trio.open_nursery() as nursery:
            if beside is not None:
                nursery.start_soon(beside)
            await run.play(targets)
            nursery.cancel_scope.cancel()
    if run.others:
        raise Failure(
            f"{plan.entity} has messages that aren't of this command. They were abandoned, and"
            " nothing else was received",
            ExitCode.WRONG,
        )


async def _open(
    stack: AsyncExitStack, config: Config, runtime: Runtime, place: NamespaceChoice, plan: LoadPlan
) -> list[tuple[OpenNamespace, OpenNamespace]]:
    """For each connection the way to send and the way to receive; a store is opened once."""
    found: list[tuple[OpenNamespace, OpenNamespace]] = []
    for _ in range(plan.connections):
        if found and not found[0][0].running and is_own(found[0][0].namespace):
            found.append(found[0])
            continue
        first = await open_place(
            stack, config, runtime, place, Right.SEND if plan.sends else Right.LISTEN
        )
        same = not (plan.sends and plan.receives) or (not first.running and is_own(first.namespace))
        second = first if same else await open_place(stack, config, runtime, place, Right.LISTEN)
        if first.takes_texts_only and plan.receives:
            raise Failure("a Storage endpoint can't be received from: --mode send", ExitCode.WRONG)
        found.append((first, second))
    return found


@attrs.define(eq=False, kw_only=True)
class _BenchRun:
    plan: LoadPlan
    figures: RunFigures
    name: str  # the prefix of the ids of this run's messages
    others: int = attrs.field(default=0, init=False)
    _numbers: "count[int]" = attrs.field(factory=count, init=False)
    _began: dict[str, float] = attrs.field(factory=dict, init=False)  # sends, by message id
    _sent_all: trio.Event = attrs.field(factory=trio.Event, init=False)
    _first: float | None = attrs.field(default=None, init=False)

    async def play(self, targets: Sequence[tuple[OpenNamespace, OpenNamespace]]) -> None:
        async with trio.open_nursery() as receivers:
            if self.plan.receives:
                for _, target in targets:
                    receivers.start_soon(self._receive, target, receivers.cancel_scope)
            if self.plan.sends:
                await self._send_all([target for target, _ in targets])
            self._sent_all.set()

    async def _send_all(self, targets: Sequence[OpenNamespace]) -> None:
        began = trio.current_time()
        with trio.move_on_after(self.plan.seconds + ANSWER_SECONDS):
            async with trio.open_nursery() as senders:
                for target in targets:
                    for _ in range(self.plan.in_flight):
                        senders.start_soon(self._send, target, began + self.plan.seconds)
        self.figures.send_seconds = trio.current_time() - began

    async def _send(self, target: OpenNamespace, until: float) -> None:
        most = inf if self.plan.count is None else self.plan.count
        while trio.current_time() < until and (number := next(self._numbers)) < most:
            message_id = f"{self.name}{number}"
            message = self._message(message_id, target)
            began = self._began[message_id] = trio.current_time()
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    await target.broker.send(self.plan.entity, [message])
            except (BrokerError, trio.TooSlowError) as error:
                self.figures.record_error(error if isinstance(error, BrokerError) else None)
                await trio.sleep(ERROR_PAUSE)
                continue
            finally:
                if not self.plan.receives:
                    del self._began[message_id]
            self.figures.sends.record(trio.current_time() - began)
            self.figures.sent += 1

    def _message(self, message_id: str, target: OpenNamespace) -> Message:
        body = message_id.encode().ljust(self.plan.size, b".")[: self.plan.size]
        if target.takes_texts_only:
            return Message(body=body, time_to_live=LIFE)
        return Message(message_id=message_id, body=body, time_to_live=LIFE)

    async def _receive(self, target: OpenNamespace, run: trio.CancelScope) -> None:
        """Receive until all messages of this run have arrived, or none has arrived for a while."""
        until = trio.current_time() + self.plan.seconds
        while True:
            try:
                async with target.broker.open_receiver(self.plan.entity) as receiver:
                    await self._receive_from(receiver, until)
            except BrokerError as error:
                self.figures.record_error(error)
                await trio.sleep(ERROR_PAUSE)
                if trio.current_time() < until:
                    continue
            break
        if self.others:
            run.cancel()

    async def _receive_from(self, receiver: Receiver, until: float) -> None:
        while not self.others and not self._has_all():
            if not self.plan.sends and trio.current_time() >= until:
                return
            deliveries: Sequence[Delivery] = ()
            with trio.move_on_after(QUIET):
                deliveries = await receiver.receive(self.plan.in_flight)
            now = trio.current_time()
            if not deliveries:
                if self._sent_all.is_set():
                    return
                continue
            self._first = now if self._first is None else self._first
            with trio.CancelScope(shield=True), trio.move_on_after(ANSWER_SECONDS):
                async with trio.open_nursery() as nursery:
                    for delivery in deliveries:
                        nursery.start_soon(self._settle, receiver, delivery, now)
            self.figures.receive_seconds = trio.current_time() - self._first

    def _has_all(self) -> bool:
        most = self.plan.count if not self.plan.sends else None
        sent_all = self.plan.sends and self._sent_all.is_set() and not self._began
        return sent_all or (most is not None and self.figures.received >= most)

    async def _settle(self, receiver: Receiver, delivery: Delivery, now: float) -> None:
        """Complete a message of this command; abandon another."""
        message_id = str(delivery.message.message_id)
        own = message_id.startswith(MARK)
        try:
            if not own:
                self.others += 1
                await receiver.settle(delivery, Abandon(delivered=False))
                return
            await receiver.settle(delivery, Complete())
        except BrokerError as error:
            self.figures.record_error(error)
            return
        self.figures.completions.record(trio.current_time() - now)
        self.figures.received += 1
        began = self._began.pop(message_id, None)
        if began is not None:
            self.figures.journeys.record(now - began)
