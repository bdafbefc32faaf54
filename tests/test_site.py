"""The documentation site: built as `make docs` builds it, and its check of links."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness.axe import audit
from tests.harness.chromium import browser
from tests.site import CONFIG, ROOT, build, indented, main, problems, with_all_pages

# The addresses that the search shows, within a part of the page of its own.
FOUND = """
[...document.querySelectorAll("*")].filter(each => each.shadowRoot)
    .flatMap(each => [...each.shadowRoot.querySelectorAll("a")]).map(link => link.href)
"""

# The colours have changed.
FADED = "Promise.all(document.getAnimations().map(each => each.finished)).then(() => true)"
# Pages with code that scrolls, wide tables, a table without a header, and pictures.
AUDITED = (
    "index.html",
    "docs/tutorial/first-message.html",
    "docs/explanation/architecture.html",
    "docs/how-to/operate/watch-on-a-page.html",
    "docs/reference/faults.html",
)
# The generator's theme names two lists of a page's links by the same words.
OF_THE_THEME = {"landmark-unique"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_each_link_leads_somewhere(site: Path) -> None:
    assert list(problems(site)) == []
    assert (site / "docs" / "tutorial" / "first-message.html").exists()


@pytest.mark.slow
@pytest.mark.live
def test_the_search_works_in_pages_that_are_files(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as one:
        one.show((site / "docs" / "tutorial" / "first-message.html").as_uri())
        one.evaluate("document.querySelector('.md-search__button').click()")
        one.until("document.activeElement.shadowRoot?.activeElement !== null")
        one.type("paired namespaces")
        found = one.until(FOUND)

        assert {urlsplit(each).scheme for each in found} == {"file"}
        assert one.complaints == []


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_axe_finds_nothing_that_is_wrong_on_a_page(site: Path, scheme: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as one:
        for page in AUDITED:
            one.show((site / page).as_uri())
            one.evaluate(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
            one.evaluate(FADED)
            found = [each for each in audit(one) if each[0] not in OF_THE_THEME]

            assert (page, found) == (page, [])


def test_the_command_fails_only_if_there_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.site.build", lambda folder: tmp_path)
    (tmp_path / "a.html").write_text('<a href="b.html">b</a>')
    with pytest.raises(SystemExit, match=r"b\.html isn't there"):
        main()
    (tmp_path / "b.html").touch()

    main()


def test_each_page_is_in_the_navigation_once() -> None:
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    config = with_all_pages((ROOT / CONFIG).read_text())
    named = leaves(tomllib.loads(config)["project"]["nav"])

    beside = ["benchmarks/README.md", "benchmarks/proof.md", "gateway/README.md"]
    others = [*beside, "index.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    assert sorted(named) == sorted([*pages, *others])


def test_a_page_that_is_not_named_is_among_those_of_its_kind() -> None:
    config = with_all_pages("[\n# further pages of docs/tutorial\n]")

    assert '{ "Your first outage" = "docs/tutorial/first-outage.md" },' in config
    assert "how-to" not in config


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for each in nav.values() if isinstance(nav, dict) else nav:
        yield from leaves(each)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<a href="missing.html">x</a>', "missing.html isn't there"),
        ('<a href="#nowhere">x</a>', "#nowhere has no such heading"),
        ('<a href="b.html#nowhere">x</a>', "b.html#nowhere has no such heading"),
        ('<script src="https://example.net/x.js"></script>', "loads https://example.net/x.js"),
        ('<link href="//example.net/font.css">', "loads //example.net/font.css"),
        ("<p>First:\n- an item</p>", "no list item, but a paragraph"),
    ],
)
def test_a_mistake_of_a_page_is_found(body: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')

    [found] = problems(tmp_path)

    assert complaint in found


def test_good_links_are_no_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">b</a> <a href="/b.html">b</a> <a href="https://example.net/">x</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')

    assert list(problems(tmp_path)) == []


def test_a_style_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url(https://example.net/font.woff2) }")

    assert list(problems(tmp_path)) == ["a.css: loads something from elsewhere"]


def test_further_lines_of_list_items_are_indented_by_four_columns() -> None:
    text = "1. One:\n\n   ```sh\n   a\n     b\n   ```\n\n2. Two\n   more.\n\nText.\n   kept\n"

    assert indented(text) == (
        "1. One:\n\n    ```sh\n    a\n      b\n    ```\n\n2. Two\n    more.\n\nText.\n   kept\n"
    )
