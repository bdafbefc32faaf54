"""A run over time as SVG: answers (primary, backlog), backlog depth, states, faults."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from benchmarks.chaos.results import Timeline

WIDTH: Final = 860
LEFT: Final = 68  # of the first second
RIGHT: Final = 20
TOP: Final = 16  # the names of the faults stand there
RATE_HEIGHT: Final = 130
DEPTH_HEIGHT: Final = 70
BAND: Final = 14
GAP: Final = 26
TICKS: Final = 10  # at most, on the axis of time
LETTER: Final = 6  # pixels, about
COLOURS: Final = {
    "primary": "#1f77b4",
    "suspect": "#e8b63a",
    "secondary": "#d9702b",
    "half-open": "#9a6fb0",
    "pinned": "#777777",
}
PRIMARY: Final = COLOURS["primary"]
BACKLOG: Final = COLOURS["secondary"]
BASELINE: Final = "#999999"
DEPTH: Final = "#2a7d4f"


def draw(timeline: Timeline) -> str:
    """Return an `svg` element that refers to no other file."""
    return "\n".join(_Plot(timeline).parts())


class _Plot:
    def __init__(self, timeline: Timeline) -> None:
        self._line = timeline
        self._bands = sorted({(move.process, move.entity) for move in timeline.moves})
        self._length = max(
            1.0,
            *(second + 1 for second, _ in (*timeline.primary, *timeline.baseline)),
            *(second for second, _ in timeline.depth),
            *(fault.end for fault in timeline.faults),
        )
        self._depth_top = TOP + RATE_HEIGHT + GAP
        self._bands_top = self._depth_top + DEPTH_HEIGHT + GAP
        self._bottom = self._bands_top + len(self._bands) * (BAND + 3)

    def parts(self) -> Iterator[str]:
        height = self._bottom + 24
        yield (
            f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
            ' font-family="sans-serif" font-size="11">'
        )
        yield "<title>answers a second, the backlog, states; faults shaded</title>"
        yield from self._faults()
        rates = (
            (self._line.baseline, BASELINE),
            (self._line.primary, PRIMARY),
            (self._line.backlog, BACKLOG),
        )
        most = max((number for points, _ in rates for _, number in points), default=1.0)
        yield from self._frame(TOP, RATE_HEIGHT, most, "answers/s")
        for points, colour in rates:
            middle = [(second + 0.5, number) for second, number in points]
            yield self._curve(middle, TOP, RATE_HEIGHT, most, colour)
        deepest = max((number for _, number in self._line.depth), default=1.0)
        yield from self._frame(self._depth_top, DEPTH_HEIGHT, deepest, "backlog")
        yield self._curve(self._line.depth, self._depth_top, DEPTH_HEIGHT, deepest, DEPTH)
        yield from self._states()
        yield from self._axis()
        yield "</svg>"

    def _x(self, second: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * max(0.0, second) / self._length, 1)

    def _faults(self) -> Iterator[str]:
        written = -math.inf  # the right end of the text that was written last
        for fault in self._line.faults:
            left, right = self._x(fault.begin), self._x(fault.end)
            colour = "#f6d5d2" if fault.target == "primary" else "#dcd6ee"
            name = f"{fault.target} {fault.kind}"
            yield (
                f'<rect x="{left}" y="0" width="{max(1.0, right - left):.1f}"'
                f' height="{self._bottom}" fill="{colour}" fill-opacity="0.7">'
                f"<title>{escape(name)}: {fault.begin:.1f} s to {fault.end:.1f} s</title></rect>"
            )
            # A repeated fault is written once, as far as there is room.
            if left >= written and left + LETTER * len(name) <= WIDTH:
                yield f'<text x="{left + 3}" y="{TOP - 4}" fill="#8c1d18">{escape(name)}</text>'
                written = left + LETTER * len(name)

    def _frame(self, top: float, height: float, most: float, name: str) -> Iterator[str]:
        bottom = top + height
        yield f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#555"/>'
        yield f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end">{most:g}</text>'
        yield f'<text x="{LEFT - 4}" y="{bottom}" text-anchor="end">0</text>'
        yield f'<text x="{LEFT - 4}" y="{top + 25}" fill="#555" text-anchor="end">{name}</text>'

    def _curve(
        self,
        points: Sequence[tuple[float, float]],
        top: float,
        height: float,
        most: float,
        colour: str,
    ) -> str:
        scale = height / max(most, 1.0)
        text = " ".join(f"{self._x(x)},{top + height - scale * y:.1f}" for x, y in points)
        return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def _states(self) -> Iterator[str]:
        for row, (process, entity) in enumerate(self._bands):
            top = self._bands_top + row * (BAND + 3)
            moves = [
                (move.at, move.state)
                for move in self._line.moves
                if (move.process, move.entity) == (process, entity)
            ]
            ends = [at for at, _ in moves[1:]] + [self._length]
            spans = [(0.0, moves[0][0], "primary")]
            spans += [(at, end, state) for (at, state), end in zip(moves, ends, strict=True)]
            for begin, end, state in spans:
                left, right = self._x(begin), self._x(end)
                yield (
                    f'<rect x="{left}" y="{top}" width="{max(0.5, right - left):.1f}"'
                    f' height="{BAND}" fill="{COLOURS.get(state, "#777777")}">'
                    f"<title>{escape(entity)} {escape(state)} since {begin:.2f} s</title></rect>"
                )
            yield f'<text x="{LEFT - 4}" y="{top + 11}" text-anchor="end">{escape(entity)}</text>'

    def _axis(self) -> Iterator[str]:
        step = max(1, math.ceil(self._length / TICKS))
        for second in range(0, int(self._length) + 1, step):
            x, y = self._x(second), self._bottom + 16
            yield f'<text x="{x}" y="{y}" text-anchor="middle">{second} s</text>'
        if self._line.healed is not None:
            x = self._x(self._line.healed)
            yield (
                f'<path d="M{x} 0V{self._bottom}" stroke="#2a7d4f" stroke-dasharray="4 3">'
                "<title>all faults are over</title></path>"
            )
