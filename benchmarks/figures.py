"""Makes the figures of measurements: medians, ratios to the baselines, and the targets."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from benchmarks.closed_loop import AZURITE, FLOOR, HTTP, IN_PROCESS, RABBITMQ, Measured
from benchmarks.sizes import Cost, Growth, Round
from benchmarks.targets import Target

LEAST_SENDS: Final = 50_000.0  # a second, in process, at the most clients
LEAST_RECEIVES: Final = 25_000.0
LEAST_OF_AZURITE: Final = 3.0  # receives, at more than one client
MOST_OF_FLOOR: Final = 1.5  # times its time for a send, at one client
MOST_GROWTH: Final = 1.1

# The ratios, as numerator and denominator, where both were measured.
_RATIOS: Final = (
    (HTTP, FLOOR),
    (HTTP, AZURITE),
    (HTTP, RABBITMQ),
    (IN_PROCESS, RABBITMQ),
)


@attrs.frozen(kw_only=True)
class Pair:
    """The figures of messages that were sent, and then received and completed."""

    send: Measured
    receive: Measured


Rounds = Mapping[tuple[str, int], Sequence[Pair]]  # by way and number of clients


@attrs.frozen(kw_only=True)
class Cell:
    """The medians of one way and number of clients."""

    way: str
    clients: int
    send: float  # messages/s
    receive: float
    # Seconds of processor time for a message: of this process, and of the server's.
    send_processor: tuple[float, float]
    receive_processor: tuple[float, float]


@attrs.frozen(kw_only=True)
class Ratio:
    """The medians of the rounds' ratios: only neighbours in time are compared."""

    way: str
    baseline: str
    clients: int
    send: float
    receive: float


@attrs.frozen(kw_only=True)
class GrowthRatio:
    """The ratio of a message's cost among many to its cost among a few. Costs are seconds."""

    kind: str
    operation: str
    few: int
    many: int
    few_cost: float
    many_cost: float
    ratio: float  # the median of the rounds' ratios
    processor_ratio: float  # of processor time, which other processes disturb less


@attrs.frozen(kw_only=True)
class Report:
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    ratios: Sequence[Ratio]
    growths: Sequence[GrowthRatio]
    targets: Sequence[Target]


def medians_of(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def ratios_of(
    rounds: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The medians of the rounds' ratios to the others, each to its neighbour in time."""
    return medians_of(
        [
            {name: one[name] / other[name] for name in one}
            for one, other in zip(rounds, others, strict=True)
        ]
    )


def report(facts: Mapping[str, str], rounds: Rounds, growths: Sequence[Growth]) -> Report:
    cells = [_cell(way, clients, pairs) for (way, clients), pairs in rounds.items()]
    ratios = [
        _ratio(way, baseline, clients, rounds)
        for way, baseline in _RATIOS
        for name, clients in rounds
        if name == way and (baseline, clients) in rounds
    ]
    grown = [one for growth in growths for one in _growth_ratios(growth)]
    return Report(
        facts=facts,
        cells=cells,
        ratios=ratios,
        growths=grown,
        targets=[*_speed_targets(cells, ratios), *map(_growth_target, grown)],
    )


def _cell(way: str, clients: int, pairs: Sequence[Pair]) -> Cell:
    return Cell(
        way=way,
        clients=clients,
        send=statistics.median(pair.send.rate for pair in pairs),
        receive=statistics.median(pair.receive.rate for pair in pairs),
        send_processor=_processor([pair.send for pair in pairs]),
        receive_processor=_processor([pair.receive for pair in pairs]),
    )


def _processor(measured: Sequence[Measured]) -> tuple[float, float]:
    return (
        statistics.median(one.processor for one in measured),
        statistics.median(one.server_processor for one in measured),
    )


def _ratio(way: str, baseline: str, clients: int, rounds: Rounds) -> Ratio:
    together = list(zip(rounds[way, clients], rounds[baseline, clients], strict=True))
    return Ratio(
        way=way,
        baseline=baseline,
        clients=clients,
        send=statistics.median(ours.send.rate / theirs.send.rate for ours, theirs in together),
        receive=statistics.median(
            ours.receive.rate / theirs.receive.rate for ours, theirs in together
        ),
    )


def _growth_ratios(growth: Growth) -> list[GrowthRatio]:
    return [
        _growth_ratio(growth, "send", lambda one: one.send),
        _growth_ratio(growth, "receive", lambda one: one.receive),
    ]


def _growth_ratio(growth: Growth, operation: str, cost: Callable[[Round], Cost]) -> GrowthRatio:
    costs = [(cost(few), cost(many)) for few, many in growth.rounds]
    return GrowthRatio(
        kind=growth.kind,
        operation=operation,
        few=growth.few,
        many=growth.many,
        few_cost=statistics.median(few.wall for few, _ in costs),
        many_cost=statistics.median(many.wall for _, many in costs),
        ratio=statistics.median(many.wall / few.wall for few, many in costs),
        processor_ratio=statistics.median(many.processor / few.processor for few, many in costs),
    )


def _speed_targets(cells: Sequence[Cell], ratios: Sequence[Ratio]) -> list[Target]:
    found: list[Target] = []
    ours = [cell for cell in cells if cell.way == IN_PROCESS]
    if ours:
        most = max(ours, key=lambda cell: cell.clients)
        for operation, rate, least in (
            ("durable sends", most.send, LEAST_SENDS),
            ("receives+completes", most.receive, LEAST_RECEIVES),
        ):
            found.append(
                Target(
                    text=f"{least:.0f} {operation}/s in process, {most.clients} clients",
                    reached=rate >= least,
                    found=f"{rate:.0f}",
                )
            )
    for ratio in ratios:
        if (ratio.way, ratio.baseline) == (HTTP, FLOOR) and ratio.clients == 1:
            found.append(
                Target(
                    text=f"a send over HTTP at most {MOST_OF_FLOOR} times the floor, 1 client",
                    reached=1 / ratio.send <= MOST_OF_FLOOR,
                    found=f"{1 / ratio.send:.2f} times",
                )
            )
        if (ratio.way, ratio.baseline) == (HTTP, AZURITE) and ratio.clients > 1:
            found.append(
                Target(
                    text=f"receives+completes over HTTP at least {LEAST_OF_AZURITE:.0f} times"
                    f" Azurite's, {ratio.clients} clients",
                    reached=ratio.receive >= LEAST_OF_AZURITE,
                    found=f"{ratio.receive:.2f} times",
                )
            )
    return found


def _growth_target(one: GrowthRatio) -> Target:
    return Target(
        text=f"{one.operation} at {one.many} {one.kind} at most {MOST_GROWTH} times {one.few}",
        reached=one.ratio <= MOST_GROWTH,
        found=f"{one.ratio:.2f} times, in processor time {one.processor_ratio:.2f}",
    )
