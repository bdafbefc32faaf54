"""The results of the AMQP benchmark: medians, ratios of neighbours in time, and the targets."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from benchmarks.targets import Target

PROTON: Final = "Proton, Pairgate"
RABBITMQ: Final = "Proton, RabbitMQ"
SDK: Final = "SDK, Pairgate"
IN_PROCESS: Final = "in process"

MOST_ADDED: Final = 1e-3  # seconds
MOST_IDLE: Final = 40 * 1024  # bytes of a gateway for an idle connection with one link


@attrs.frozen(kw_only=True)
class Flight:
    """A measurement with a number of messages in flight. Times are seconds."""

    messages: int
    seconds: float
    p50: float  # from the call to the broker's answer; not a number where none is awaited
    p99: float
    busy: float  # share of one core that the client took
    # Seconds of processor time for each message, of each process that serves the client.
    servers: Mapping[str, float]

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def client(self) -> float:
        """Seconds of the client's processor time for each message."""
        return self.busy * self.seconds / self.messages


@attrs.frozen(kw_only=True)
class Pair:
    """The figures of messages that were sent, and then received and completed."""

    send: Flight
    receive: Flight


Rounds = Mapping[tuple[str, int], Sequence[Pair]]  # by way and window


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of one way, window and operation."""

    way: str
    window: int
    operation: str
    rate: float  # messages/s
    p50: float
    p99: float
    client: float  # seconds of its processor time for each message
    servers: Mapping[str, float]  # as in `Flight`


@attrs.frozen(kw_only=True)
class Ratio:
    """The rates of one way beside another's: the medians of the rounds' ratios."""

    window: int
    send: float
    receive: float


@attrs.frozen(kw_only=True)
class Idle:
    """The cost of idle connections: `each` is resident memory of the gateway, in bytes."""

    kind: str
    connections: int
    each: float
    opening: float = 0.0  # seconds of the gateway's processor time for each


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    ratios: Sequence[Ratio]
    idle: Sequence[Idle]
    targets: Sequence[Target]


_OPERATIONS: Final[Mapping[str, Callable[[Pair], Flight]]] = {
    "send": lambda pair: pair.send,
    "receive, complete": lambda pair: pair.receive,
}


def report(facts: Mapping[str, str], rounds: Rounds, idle: Sequence[Idle]) -> Report:
    ratios = [
        ratio_of(window, pairs, rounds[RABBITMQ, window])
        for (way, window), pairs in rounds.items()
        if way == PROTON and (RABBITMQ, window) in rounds
    ]
    targets = [*map(_rate_target, ratios), *_added_targets(rounds), *map(idle_target, idle)]
    return Report(facts=facts, cells=cells_of(rounds), ratios=ratios, idle=idle, targets=targets)


def cells_of(rounds: Rounds) -> Sequence[Cell]:
    return [
        _cell(way, window, operation, [flight_of(pair) for pair in pairs])
        for (way, window), pairs in rounds.items()
        for operation, flight_of in _OPERATIONS.items()
    ]


def _cell(way: str, window: int, operation: str, flights: Sequence[Flight]) -> Cell:
    return Cell(
        way=way,
        window=window,
        operation=operation,
        rate=statistics.median(one.rate for one in flights),
        p50=statistics.median(one.p50 for one in flights),
        p99=statistics.median(one.p99 for one in flights),
        client=statistics.median(one.client for one in flights),
        servers={
            name: statistics.median(one.servers[name] for one in flights)
            for name in flights[0].servers
        },
    )


def ratio_of(window: int, ours: Sequence[Pair], theirs: Sequence[Pair]) -> Ratio:
    """Return the median ratios; only measurements of one round are compared."""
    together = list(zip(ours, theirs, strict=True))
    return Ratio(
        window=window,
        send=statistics.median(our.send.rate / their.send.rate for our, their in together),
        receive=statistics.median(our.receive.rate / their.receive.rate for our, their in together),
    )


def idle_target(idle: Idle) -> Target:
    """The goal for the memory of a gateway's idle connection."""
    return Target(
        text=f"at most {MOST_IDLE / 1024:.0f} KiB for each of {idle.connections} idle {idle.kind}",
        reached=idle.each <= MOST_IDLE,
        found=f"{idle.each / 1024:.1f} KiB",
    )


def _rate_target(ratio: Ratio) -> Target:
    return Target(
        text=f"at least RabbitMQ's rates, window {ratio.window}",
        reached=min(ratio.send, ratio.receive) >= 1.0,
        found=f"{ratio.send:.2f} times in sends, {ratio.receive:.2f} in receives",
    )


def _added_targets(rounds: Rounds) -> list[Target]:
    """
    The targets of the added latency with one message in flight: with more, each waits for others.
    """
    ours, inner = rounds.get((PROTON, 1)), rounds.get((IN_PROCESS, 1))
    if ours is None or inner is None:
        return []
    together = zip(ours, inner, strict=True)
    added = statistics.median(our.send.p50 - one.send.p50 for our, one in together)
    return [
        Target(
            text=f"a send's p50 less than {1e3 * MOST_ADDED:.0f} ms above in process, window 1",
            reached=added < MOST_ADDED,
            found=f"{1e3 * added:.2f} ms",
        )
    ]
