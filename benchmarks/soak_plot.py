"""Figures over time as SVG, one panel for each, with the moments of faults."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

import attrs

WIDTH: Final = 860
LEFT: Final = 70  # of the first second
RIGHT: Final = 20
TOP: Final = 22  # of the first panel
HEIGHT: Final = 110
GAP: Final = 34
TICKS: Final = 10
COLOURS: Final = ("#1f77b4", "#d9702b", "#2a7d4f", "#9a6fb0")


@attrs.frozen(kw_only=True)
class Panel:
    """The curves of a figure: by process, its points in seconds and values."""

    name: str
    curves: Mapping[str, Sequence[tuple[float, float]]]


def draw(panels: Sequence[Panel], faults: Sequence[tuple[float, str]], *, warm_up: float) -> str:
    """Return an `svg` element that refers to no other file. The time before `warm_up` is shaded."""
    return "\n".join(_parts(panels, faults, warm_up))


def _parts(
    panels: Sequence[Panel], faults: Sequence[tuple[float, str]], warm_up: float
) -> Iterator[str]:
    times = [at for panel in panels for points in panel.curves.values() for at, _ in points]
    scale = (WIDTH - LEFT - RIGHT) / max([1.0, *times])
    bottom = TOP + len(panels) * (HEIGHT + GAP)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" width="{WIDTH}"'
        f' height="{bottom}" role="img" font-family="sans-serif" font-size="11">'
    )
    yield "<title>memory, descriptors, tasks and loop lag over time; faults as lines</title>"
    yield f'<rect width="{WIDTH}" height="{bottom}" fill="white"/>'
    yield (
        f'<rect x="{LEFT}" y="{TOP}" width="{scale * warm_up:.1f}" height="{bottom - TOP - GAP}"'
        ' fill="#eeeeee"><title>warm-up</title></rect>'
    )
    for at, name in faults:
        x = LEFT + scale * at
        yield (
            f'<path d="M{x:.1f} {TOP}V{bottom - GAP}" stroke="#f0c4c0">'
            f"<title>{escape(name)}: {at:.0f} s</title></path>"
        )
    for number, panel in enumerate(panels):
        yield from _panel(panel, TOP + number * (HEIGHT + GAP), scale)
    for number, name in enumerate(panels[0].curves if panels else ()):
        yield (
            f'<text x="{LEFT + 120 * number}" y="14" fill="{COLOURS[number % len(COLOURS)]}">'
            f"{escape(name)}</text>"
        )
    yield "</svg>"


def _panel(panel: Panel, top: float, scale: float) -> Iterator[str]:
    values = [value for points in panel.curves.values() for _, value in points]
    most, below = max([1.0, *values]), top + HEIGHT
    yield f'<path d="M{LEFT} {top}V{below}H{WIDTH - RIGHT}" fill="none" stroke="#555"/>'
    yield f'<text x="{LEFT - 4}" y="{top + 10}" text-anchor="end">{most:.4g}</text>'
    yield f'<text x="{LEFT - 4}" y="{below}" text-anchor="end">0</text>'
    yield f'<text x="{LEFT - 4}" y="{top + 40}" text-anchor="end">{escape(panel.name)}</text>'
    last = (WIDTH - LEFT - RIGHT) / scale
    for tick in range(TICKS + 1):
        at = last * tick / TICKS
        yield (
            f'<text x="{LEFT + scale * at:.1f}" y="{below + 14}" text-anchor="middle">'
            f"{at / 60:.1f} min</text>"
        )
    for number, points in enumerate(panel.curves.values()):
        text = " ".join(
            f"{LEFT + scale * at:.1f},{below - HEIGHT * value / most:.1f}" for at, value in points
        )
        colour = COLOURS[number % len(COLOURS)]
        yield f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
