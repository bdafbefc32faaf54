"""
The page of all runs, which needs nothing from elsewhere, and the table for the documentation.

`python -m benchmarks.chaos.report [DIR]` writes the page again and prints the table in Markdown.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from benchmarks.chaos.plot import BACKLOG, BASELINE, COLOURS, DEPTH, PRIMARY, draw
from benchmarks.chaos.results import Result, load

PAGE: Final = "index.html"
PROBLEMS_SHOWN: Final = 20  # of one run; the checker prints all of them
STYLE: Final = """
body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 1240px; padding: 0 1em; }
table { border-collapse: collapse; margin: .8em 0; font-size: 13px; }
th, td { border: 1px solid #ccc; padding: .2em .5em; text-align: right; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
.scroll { overflow-x: auto; } svg { max-width: 100%; height: auto; }
.holds, .met { color: #1d6b3c; } .broken, .undecided, .missed { color: #b3261e; font-weight: bold; }
.key span { margin-right: 1.2em; } .key i { display: inline-block; width: 1em; height: .8em; }
.tables { display: flex; flex-wrap: wrap; gap: 0 2em; align-items: flex-start; }
section { border-top: 1px solid #ccc; margin-top: 2em; }
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"  # browsers hold the page to it
HEAD: Final = (
    *("run", "sent", "acknowledged %", "direct %", "stall s", "p50 ms", "p99 ms", "worst s"),
    *("failover s", "diverted", "drain s", "lost", "twice", "amplification", "verdict"),
)
METHOD: Final = (
    "Each run has processes of its own. Open loops send at a constant rate to two entities of the"
    " gateway, and one loop sends half as much to the primary directly, through the same faults:"
    " that is the baseline. Latencies count from when a send was due; a send counts as acknowledged"
    " within 12 s. Consumers take the messages from the primary; in the end every queue is read,"
    " and the checker judges the histories that all of them wrote."
)


def write_page(results: Sequence[Result], out: Path) -> Path:
    """Return where the page is."""
    path = out / PAGE
    path.write_text("\n".join(_page(results)) + "\n")
    return path


def row_of(result: Result) -> list[str]:
    """Return the table's row of a run, in the order of `HEAD`."""
    served, direct, after = result.gateway, result.baseline, result.recovery
    return [
        result.name,
        str(served.sent),
        f"{100 * served.availability:.2f}",
        f"{100 * direct.availability:.1f}",
        _text(served.stall, 2),
        _text(1000 * served.p50, 1),
        _text(1000 * served.p99, 0),
        _text(served.worst, 2),
        _text(after.failover, 2),
        str(after.diverted),
        _text(after.drain, 1),
        _count(result, "lost"),
        _count(result, "duplicated"),
        _text(result.messages.get("amplification"), 3),
        result.verdict,
    ]


def markdown(results: Sequence[Result]) -> str:
    """The same table for `docs/reference/faults.md`."""
    lines = [HEAD, ["---"] * len(HEAD), *(row_of(result) for result in results)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _page(results: Sequence[Result]) -> Iterator[str]:
    yield '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield f"<title>Pairgate: chaos</title><style>{STYLE}</style></head><body>"
    yield f"<h1>What was done to a pair, and what became of it</h1><p>{METHOD}</p>"
    yield from _summary(results)
    for result in results:
        yield from _section(result)
    yield "</body></html>"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    missed = [
        f"{escape(result.name)}: {escape(target.name)} {escape(target.found)}, wanted:"
        f" {escape(target.wanted)}"
        for result in results
        for target in result.targets
        if not target.met
    ]
    held = sum(result.passed for result in results)
    acked = sum(int(result.messages.get("acked", 0)) for result in results)
    lost = sum(int(result.messages.get("lost", 0)) for result in results)
    yield (
        f"<p><b>{held} of {len(results)} runs hold; {lost} of {acked} acknowledged messages lost;"
        f" {len(missed)} targets missed.</b></p>"
    )
    yield from (f'<p class="missed">{text}</p>' for text in missed)
    yield '<div class="scroll"><table><tr>'
    yield "".join(f"<th>{name}</th>" for name in HEAD) + "</tr>"
    for result in results:
        first, *cells, verdict = row_of(result)
        yield (
            f'<tr><td><a href="#{escape(first)}">{escape(first)}</a></td>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f'<td class="{verdict}">{verdict}</td></tr>'
        )
    yield "</table></div>"
    if results:
        facts = (f"{escape(name)}: {escape(text)}" for name, text in results[0].facts.items())
        yield f"<p>{'; '.join(facts)}</p>"


def _section(result: Result) -> Iterator[str]:
    name = escape(result.name)
    yield f'<section id="{name}"><h2>{escape(result.title)}</h2>'
    proxy = "through a proxy" if result.proxied else "without a proxy"
    yield (
        f"<p>{escape(result.topology)}, failover interval {escape(result.interval)}, {proxy},"
        f" {result.rate:g} messages/s to each entity, seed {result.seed}:"
        f' <span class="{result.verdict}">{result.verdict}</span></p>'
    )
    yield _key() + draw(result.timeline)
    for text in (*result.undecided, *result.problems[:PROBLEMS_SHOWN]):
        yield f'<p class="broken">{escape(text)}</p>'
    yield '<div class="tables">'
    yield "<table><tr><th>target</th><th>wanted</th><th>found</th></tr>"
    for target in result.targets:
        kind = "met" if target.met else "missed"
        yield (
            f"<tr><td>{escape(target.name)}</td><td>{escape(target.wanted)}</td>"
            f'<td class="{kind}">{escape(target.found)}</td></tr>'
        )
    yield "</table>"
    for title, figures in (("service", _of_service(result)), ("outage", _of_outage(result))):
        yield f"<table><tr><th>{title}</th><th>through the gateway</th><th>without it</th></tr>"
        for figure, through, direct in figures:
            yield f"<tr><td>{figure}</td><td>{through}</td><td>{direct}</td></tr>"
        yield "</table>"
    yield "<table><tr><th>messages</th><th></th></tr>"
    for figure, number in _of_messages(result):
        yield f"<tr><td>{figure}</td><td>{number}</td></tr>"
    yield "</table></div>"
    links = (f'<a href="{name}/{escape(file)}">{escape(file)}</a>' for file in result.histories)
    yield f"<p>Histories: {', '.join(links)}</p></section>"


def _key() -> str:
    colours = {
        "answered by the primary": PRIMARY,
        "by the backlog": BACKLOG,
        "without the gateway": BASELINE,
        "backlog": DEPTH,
        "suspect": COLOURS["suspect"],
        "failed over": COLOURS["secondary"],
        "half-open": COLOURS["half-open"],
    }
    spans = (
        f'<span><i style="background:{colour}"></i> {name}</span>'
        for name, colour in colours.items()
    )
    return f'<p class="key">{"".join(spans)}</p>'


def _of_service(result: Result) -> Iterator[tuple[str, str, str]]:
    """Yield the service that producers saw: the figures of the plan, section 3.5."""
    served, direct = result.gateway, result.baseline
    yield "sends", str(served.sent), str(direct.sent)
    yield "acknowledged", str(served.acknowledged), str(direct.acknowledged)
    for name, digits, scale in (
        ("availability", 3, 100.0),
        ("windows", 1, 100.0),
        ("stall", 2, 1.0),
        ("p50", 2, 1000.0),
        ("p99", 1, 1000.0),
        ("p999", 1, 1000.0),
        ("worst", 1, 1000.0),
    ):
        pair = (_text(scale * getattr(one, name), digits) for one in (served, direct))
        yield (_NAMES[name], *pair)
    for name, title in (("p50", "p50 before the fault, ms"), ("p99", "p99 before the fault, ms")):
        pair = (
            _text(1000.0 * getattr(one, name), 2)
            for one in (result.healthy, result.baseline_healthy)
        )
        yield (title, *pair)
    lost = "?" if result.baseline_lost is None else str(result.baseline_lost)
    yield "lost", _count(result, "lost"), lost


def _of_outage(result: Result) -> Iterator[tuple[str, str, str]]:
    """Yield the figures of the outage: the gateway's time to recover, and its diverted messages."""
    after, direct = result.recovery, result.baseline_recovery
    for title, seconds, without in (
        ("failover time, s", after.failover, None),
        ("good service again after, s", after.good_again, direct.good_again),
        ("failback after the healing, s", after.failback, direct.failback),
        ("backlog empty after the healing, s", after.drain, None),
        ("drain rate, messages/s", after.drain_rate, None),
        ("detour p50, s", after.detour_p50, None),
        ("detour p99, s", after.detour_p99, None),
        ("longest detour, s", after.detour_worst, None),
    ):
        yield title, _text(seconds, 2), _text(without, 2)
    yield "diverted", str(after.diverted), ""
    yield "deepest backlog", str(result.deepest), ""
    yield "most memory of the gateway, MiB", f"{result.memory / 2**20:.0f}", ""
    yield "most open files of the gateway", str(result.files), ""


def _of_messages(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the fates of the messages, in the words of the checker."""
    for name, number in result.messages.items():
        yield name, f"{number:g}"
    acked = max(1.0, result.messages.get("acked", 0.0))
    extra = result.messages.get("duplicated", math.nan)
    yield "duplicates per million", _text(1e6 * extra / acked, 0)


_NAMES: Final = {
    "availability": "acknowledged in time, %",
    "windows": "windows of 100 ms with an answer, %",
    "stall": "longest stall, s",
    "p50": "p50, ms",
    "p99": "p99, ms",
    "p999": "p99.9, ms",
    "worst": "worst, ms",
}


def _text(number: float | None, digits: int) -> str:
    return "" if number is None or not math.isfinite(number) else f"{number:.{digits}f}"


def _count(result: Result, name: str) -> str:
    return f"{result.messages[name]:g}" if name in result.messages else "?"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The page and the table of runs that were made.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/chaos"))
    chosen = parser.parse_args(arguments)
    results = load(chosen.folder)
    write_page(results, chosen.folder)
    sys.stdout.write(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
