"""The page of the runs, as a reader sees it in a browser."""

from pathlib import Path
from urllib.parse import unquote, urlparse

import attrs
import pytest

from benchmarks.chaos.report import write_page
from benchmarks.chaos.results import Shade
from tests.benchmarks.chaos_results import MISSING, RESULT
from tests.harness.chromium import Browser, browser

pytestmark = [pytest.mark.slow, pytest.mark.live]

FLAPPING = attrs.evolve(
    RESULT,
    name="flapping-embedded-0s",
    title="The primary comes and goes",
    targets=MISSING,
    timeline=attrs.evolve(
        RESULT.timeline,
        faults=tuple(
            Shade(kind="refused", target="primary", begin=0.2 * n, end=0.2 * n + 0.1)
            for n in range(10)
        ),
    ),
)
# The boxes of all texts of a plot, with the text.
TEXTS = """
[...document.querySelectorAll("svg")].map(svg => [...svg.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.top, box.right, box.bottom];
}))
"""
BOX = "(() => {{ const b = document.querySelector('{}').getBoundingClientRect(); return [{}] }})()"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chaos")
    for result in (RESULT, FLAPPING):
        for name in result.histories:
            history = folder / result.name / name
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch()
    return write_page([RESULT, FLAPPING], folder)


@pytest.fixture(scope="module")
def shown(page: Path, tmp_path_factory: pytest.TempPathFactory):
    with browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        one.show(page.as_uri())
        yield one


def test_the_page_requests_nothing_and_reports_no_error(shown: Browser, page: Path) -> None:
    assert shown.requests == [page.as_uri()]
    assert shown.complaints == []


def test_content_from_elsewhere_is_refused_and_seen(page: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(page.read_text().replace("<h1>", '<img src="http://localhost:9/x"><h1>'))

    with browser(tmp_path / "profile") as one:
        one.show(spoilt.as_uri())

    assert "Content Security Policy" in " ".join(one.complaints)


def test_a_reader_sees_the_verdicts_the_figures_and_the_machine(shown: Browser) -> None:
    seen = shown.evaluate("document.body.innerText")

    for text in (
        "2 of 2 runs hold; 0 of 1998 acknowledged messages lost; 1 targets missed.",
        "flapping-embedded-0s: longest stall 9.00 s, wanted: at most 4 s",
        "The primary <is killed>",
        *("p50, ms", "p99.9, ms", "failover time, s", "deepest backlog", "through the gateway"),
        *("answered by the primary", "without the gateway", "2 x <fast>", "holds"),
    ):
        assert text in seen


def test_a_plot_names_its_faults_its_curves_and_its_entities(shown: Browser) -> None:
    first, _ = shown.evaluate(TEXTS)

    assert {text for text, *_ in first} >= {
        *("primary killed", "answers/s", "backlog", "orders", "80", "0", "0 s", "1 s", "2 s"),
    }


def test_no_text_of_a_plot_covers_another(shown: Browser) -> None:
    for texts in shown.evaluate(TEXTS):
        covered = [
            (one[0], other[0])
            for number, one in enumerate(texts)
            for other in texts[number + 1 :]
            if one[1] < other[3] and other[1] < one[3] and one[2] < other[4] and other[2] < one[4]
        ]
        assert covered == []


def test_no_text_of_a_plot_is_cut(shown: Browser) -> None:
    left, top, right, bottom = shown.evaluate(BOX.format("svg", "b.left, b.top, b.right, b.bottom"))
    [texts, _] = shown.evaluate(TEXTS)

    cut = [
        one[0]
        for one in texts
        if one[1] < left or one[2] < top or one[3] > right or one[4] > bottom
    ]
    assert cut == []


def test_a_fault_is_shaded_from_its_begin_to_its_end(shown: Browser) -> None:
    [texts, _] = shown.evaluate(TEXTS)
    middle = {text: (left + right) / 2 for text, left, _, right, _ in texts}
    left, right = shown.evaluate(BOX.format("svg rect", "b.left, b.right"))

    assert left == pytest.approx(middle["1 s"], abs=2)
    assert right == pytest.approx(middle["2 s"], abs=2)


def test_nothing_is_wider_than_the_window(shown: Browser) -> None:
    assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert shown.evaluate(BOX.format("svg", "b.width > 700, b.height > 200")) == [True, True]


def test_each_link_leads_somewhere(shown: Browser, page: Path) -> None:
    links = shown.evaluate("[...document.querySelectorAll('a')].map(a => a.href)")

    inside = [urlparse(link).fragment for link in links if "#" in link]
    files = [unquote(urlparse(link).path) for link in links if "#" not in link]
    assert sorted(inside) == sorted([RESULT.name, FLAPPING.name])
    assert shown.evaluate(f"document.getElementById('{RESULT.name}') !== null")
    assert len(files) == len(RESULT.histories) + len(FLAPPING.histories)
    assert all(Path(file).exists() for file in files)
