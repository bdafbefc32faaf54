"""
The results of the benchmark of Storage Queue: medians, ratios of neighbours in time, the targets.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from benchmarks.targets import Target

PAIRGATE: Final = "Pairgate"
AZURITE: Final = "Azurite"
THROUGH: Final = "Azurite through Pairgate"

SHALLOW: Final = 100  # messages: the depth at which ours is judged beside Azurite
LEAST_OF_AZURITE: Final = 3.0
LEAST_OF_DIRECT: Final = 0.8
LEAST_OF_SHALLOW: Final = 0.9

# The ratios, as numerator and denominator, where both were measured in one round.
_RATIOS: Final = ((PAIRGATE, AZURITE), (THROUGH, AZURITE))


@attrs.frozen(kw_only=True)
class Flight:
    """A kind of operation in a measurement. Times are seconds, of each operation."""

    messages: int
    seconds: float
    p50: float
    p99: float
    client: float  # seconds of the client's processor time for each operation
    # The same of each process that serves it, by name.
    servers: Mapping[str, float] = attrs.field(factory=dict)

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@attrs.frozen(kw_only=True)
class Pair:
    """
    The figures of messages that were put, and then got and deleted: both together are one
    operation.
    """

    put: Flight
    get: Flight


@attrs.frozen
class Place:
    """
    The conditions of a measurement: a way, a number of messages that stay, a number of connections.
    """

    way: str
    depth: int
    connections: int


Rounds = Mapping[Place, Sequence[Pair]]


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of one place and operation."""

    place: Place
    operation: str
    rate: float  # operations/s
    p50: float
    p99: float
    client: float  # as in `Flight`
    servers: Mapping[str, float]


@attrs.frozen(kw_only=True)
class Ratio:
    """The medians of the rounds' ratios: only neighbours in time are compared."""

    place: Place
    baseline: Place
    put: float
    get: float

    @property
    def least(self) -> float:
        return min(self.put, self.get)


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    ratios: Sequence[Ratio]
    targets: Sequence[Target]


PUT: Final = "put"
GET: Final = "get, delete"
_OPERATIONS: Final[Mapping[str, Callable[[Pair], Flight]]] = {
    PUT: lambda pair: pair.put,
    GET: lambda pair: pair.get,
}


def flight(
    latencies: Sequence[float], seconds: float, client: float, servers: Mapping[str, float]
) -> Flight:
    """
    The figures of some operations, by their latencies; together they took `seconds`. `client` and
    `servers` are seconds of processor time for all of them.
    """
    ordered = sorted(latencies)
    return Flight(
        messages=len(ordered),
        seconds=seconds,
        p50=ordered[len(ordered) // 2],
        p99=ordered[len(ordered) * 99 // 100],
        client=client / len(ordered),
        servers={name: taken / len(ordered) for name, taken in servers.items()},
    )


def report(facts: Mapping[str, str], rounds: Rounds) -> Report:
    """Judge the measurements; a target whose parts weren't measured is left out."""
    beside = [
        _ratio(place, attrs.evolve(place, way=baseline), rounds)
        for way, baseline in _RATIOS
        for place in rounds
        if place.way == way and attrs.evolve(place, way=baseline) in rounds
    ]
    deeper = [
        _ratio(place, attrs.evolve(place, depth=SHALLOW), rounds)
        for place in rounds
        if place.way == PAIRGATE
        and place.depth > SHALLOW
        and attrs.evolve(place, depth=SHALLOW) in rounds
    ]
    return Report(
        facts=facts,
        cells=[
            _cell(place, name, pairs) for place, pairs in rounds.items() for name in _OPERATIONS
        ],
        ratios=[*beside, *deeper],
        targets=[
            *_target(
                f"at least {LEAST_OF_AZURITE:.0f} times Azurite at depth {SHALLOW}",
                LEAST_OF_AZURITE,
                [each for each in beside if _is_shallow(each, PAIRGATE)],
            ),
            *_target(
                f"at least {LEAST_OF_SHALLOW} of depth {SHALLOW} at every depth",
                LEAST_OF_SHALLOW,
                deeper,
            ),
            *_target(
                f"at least {LEAST_OF_DIRECT} of Azurite through Pairgate, at depth {SHALLOW}",
                LEAST_OF_DIRECT,
                [each for each in beside if _is_shallow(each, THROUGH)],
            ),
        ],
    )


def _is_shallow(ratio: Ratio, way: str) -> bool:
    return ratio.place.way == way and ratio.place.depth == SHALLOW


def _cell(place: Place, operation: str, pairs: Sequence[Pair]) -> Cell:
    flights = [_OPERATIONS[operation](pair) for pair in pairs]
    return Cell(
        place=place,
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


def _ratio(place: Place, baseline: Place, rounds: Rounds) -> Ratio:
    together = list(zip(rounds[place], rounds[baseline], strict=True))
    return Ratio(
        place=place,
        baseline=baseline,
        put=statistics.median(ours.put.rate / theirs.put.rate for ours, theirs in together),
        get=statistics.median(ours.get.rate / theirs.get.rate for ours, theirs in together),
    )


def _target(text: str, least: float, ratios: Sequence[Ratio]) -> list[Target]:
    """The least ratio decides."""
    if not ratios:
        return []
    worst = min(ratios, key=lambda ratio: ratio.least)
    place = f"depth {worst.place.depth}, {worst.place.connections} connections"
    found = f"puts {worst.put:.2f} times, gets and deletes {worst.get:.2f}, at {place}"
    return [Target(text=text, reached=worst.least >= least, found=found)]
