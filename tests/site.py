"""
The documentation site, built strictly, with each link checked.

    python -m tests.site     builds it in build/docs/site

A site generator knows one folder of pages. Here README.md is the first page, and pages link to
files of the whole project. So the pages are laid out with the files that they link to, at the same
places: no link is rewritten. Further lines of list items are indented by four columns, which the
generator's Markdown needs.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

ROOT: Final = Path(__file__).parents[1]
ZENSICAL: Final = ROOT / ".venv-docs" / "bin" / "zensical"
CONFIG: Final = "zensical.toml"
LINK: Final = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ITEM: Final = re.compile(r"(?:\d\.|-) ")
LOST_ITEM: Final = re.compile(r"<p>(?:(?!</p>).)*?\n *(?:-|\d+\.) ", re.DOTALL)
FURTHER: Final = re.compile(r"# further pages of (\S+)")
FENCED: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# An element that a browser loads, and its attribute; a link to elsewhere is followed by people.
LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
EMPTY_HEADER: Final = re.compile(r"<th( [^>]*)?></th>")
READABLE: Final = """
body[data-md-color-scheme=default] .md-nav__link--active { color: #4051b5 !important }
body[data-md-color-scheme=slate] .md-nav__link--active { color: #8c9eff !important }
"""
CSS_URL: Final = re.compile(r"""url\(\s*['"]?(https?:)?//""")


def build(folder: Path) -> Path:
    """
    Build the site in that folder; return the folder of its first page.

    Raises:
        SystemExit: the generator has a warning; it was printed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    lay_out(pages)
    (folder / CONFIG).write_text(with_all_pages((ROOT / CONFIG).read_text()))
    command = [ZENSICAL, "build", "--strict", "--clean", "--config-file", folder / CONFIG]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={"NO_COLOR": "1"}
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{done.stderr}")
    make_searchable(folder / "site")
    make_accessible(folder / "site")
    return folder / "site"


def make_searchable(site: Path) -> None:
    """
    Write the script that the search loads instead of `search.json` if the pages are files.

    A browser lets a page that is a file read no other file, and start no worker from one: the
    script has the index, and the text of the worker.
    """
    [worker] = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    text, index = json.dumps(worker.read_text()), (site / "search.json").read_text()
    (site / "search.js").write_text(
        f"const workerUrl = URL.createObjectURL(new Blob([{text}], {{type: 'text/javascript'}}));\n"
        "window.Worker = class extends Worker { constructor() { super(workerUrl); } };\n"
        f"var __index = {index};\n"
    )


def make_accessible(site: Path) -> None:
    """
    Let a screen reader skip headers without a text, and everybody read the name of the current
    page, for which the generator's theme has too little contrast.
    """
    for page in site.rglob("*.html"):
        page.write_text(EMPTY_HEADER.sub(r"<td\1></td>", page.read_text()))
    for style in (site / "assets" / "stylesheets").rglob("main.*.css"):  # of each variant
        style.write_text(style.read_text() + READABLE)


def lay_out(pages: Path) -> None:
    """Copy the pages, and the files that they link to, directly or by others."""
    todo = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    todo += [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    copied = set[Path]()
    while todo:
        path = todo.pop()
        if path in copied:
            continue
        copied.add(path)
        to = pages / path.relative_to(ROOT)
        if path.is_dir():
            to.mkdir(parents=True, exist_ok=True)
            if not (path / "README.md").exists():
                (to / "index.md").write_text(listing(path))
            todo += [each for each in path.iterdir() if each.is_file()]
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            to.write_text(indented(path.read_text()))
            todo += linked(path)
        else:
            shutil.copy(path, to)
    (pages / "README.md").rename(pages / "index.md")


def with_all_pages(config: str) -> str:
    """The configuration, with each page of docs/ that it doesn't name among those of its kind."""

    def further(found: re.Match[str]) -> str:
        pages = sorted(ROOT.joinpath(found[1]).glob("*.md"))
        names = {page: str(page.relative_to(ROOT)) for page in pages}
        lines = [
            f'{{ {json.dumps(heading(page))} = "{name}" }},'
            for page, name in names.items()
            if f'"{name}"' not in config
        ]
        return "\n".join(lines)

    return FURTHER.sub(further, config)


def indented(text: str) -> str:
    """The page with the further lines of its list items indented by four columns."""
    lines, width, fenced = list[str](), 0, False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and (item := ITEM.match(line)):
            width = len(item[0])
        elif line and line[:width].strip():
            width = 0
        further = width and not fenced and line.startswith(" " * width)
        lines.append(" " * (4 - width) + line if further else line)
    return "\n".join(lines) + "\n"


def linked(page: Path) -> list[Path]:
    """The files and folders that the page links to."""
    targets = LINK.findall(FENCED.sub("", page.read_text()))
    return [(page.parent / target).resolve() for target in targets]


def listing(folder: Path) -> str:
    """A page for a folder: its pages with their headings, or its files."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file():
            name = heading(path) if path.suffix == ".md" else path.name
            lines.append(f"- [{name}]({path.name})")
    return "\n".join(lines) + "\n"


def heading(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


@attrs.define
class Page(HTMLParser):
    """The ids of a page, its links, and the files that a browser loads with it."""

    ids: set[str] = attrs.field(factory=set)
    links: list[str] = attrs.field(factory=list)
    loads: list[str] = attrs.field(factory=list)

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if loaded := found.get(LOADED.get(tag, "")):
            self.loads.append(loaded)


def read(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text())
    return page


def problems(site: Path) -> Iterator[str]:
    """Links that lead nowhere, malformed lists, and files that would be loaded from elsewhere."""
    pages = {file: read(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        name = file.relative_to(site)
        for found in LOST_ITEM.findall(file.read_text()):
            yield f"{name}: no list item, but a paragraph: {found[-60:]}"
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loads:
                    yield f"{name}: loads {target}"
                continue
            path = unquote(parts.path)
            base = site if path.startswith("/") else file.parent
            there = (base / path.lstrip("/")).resolve() if path else file
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                yield f"{name}: {target} isn't there"
            elif (
                parts.fragment
                and there in pages
                and unquote(parts.fragment) not in pages[there].ids
            ):
                yield f"{name}: {target} has no such heading"
    for file in sorted(site.rglob("*.css")):
        if CSS_URL.search(file.read_text()):
            yield f"{file.relative_to(site)}: loads something from elsewhere"


def main() -> None:
    site = build(ROOT / "build" / "docs")
    found = list(problems(site))
    if found:
        sys.exit("\n".join(found))
    sys.stdout.write(f"{site}/index.html\n")


if __name__ == "__main__":
    main()
