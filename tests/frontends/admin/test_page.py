"""The files of the operators' page, requested without a socket."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import gateway.frontends.admin
from gateway.extensions.listing import extensions
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.wire.http.messages import Headers, Request, Response
from tests.frontends.admin.figures import frontend

WEB = Path(gateway.frontends.admin.__path__[0]) / "web"
WITH_PARTS = [each for each in extensions() if each.page]
FOLDERS = [WEB, *(Path(import_module(each.package).__path__[0]) / "web" for each in WITH_PARTS)]
FILES = {path.name: path for folder in FOLDERS for path in folder.iterdir()}


async def ask(target: str, asked: FiguresFrontend | None = None, **fields: str) -> Response:
    headers = Headers.of({name.replace("_", "-"): value for name, value in fields.items()})
    asked = asked or frontend(closed=True)
    return await asked.handle(Request(method="GET", target=target, headers=headers))


async def test_anyone_gets_the_page_which_contains_no_figures() -> None:
    answer = await ask("/")

    assert answer.status == 200
    assert answer.headers.get("Content-Type") == "text/html; charset=utf-8"
    assert answer.body == (WEB / "index.html").read_bytes()


@pytest.mark.parametrize("name", sorted(FILES))
async def test_each_file_has_its_type_and_the_headers_that_keep_others_out(name: str) -> None:
    answer = await ask(f"/page/{name}")

    assert answer.status == 200
    assert answer.body == FILES[name].read_bytes()
    assert answer.headers.get("X-Content-Type-Options") == "nosniff"
    policy = answer.headers.get("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_page_learns_the_scripts_of_extensions_of_which_no_two_have_one_name() -> None:
    answer = await ask("/page/modules")
    names = [path.name for folder in FOLDERS for path in folder.iterdir()]

    assert json.loads(answer.body) == {"modules": [name for e in WITH_PARTS for name in e.page]}
    assert {name for each in WITH_PARTS for name in each.page} <= set(FILES)
    assert len(names) == len(set(names))


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    first = await ask("/page/page.js")
    tag = first.headers.get("ETag") or ""
    again = await ask("/page/page.js", If_None_Match=f'"other", {tag}')
    other = await ask("/page/page.js", If_None_Match='"other"')

    assert first.headers.get("Cache-Control") == "no-cache"
    assert (again.status, again.body) == (304, b"")
    assert other.status == 200


@pytest.mark.parametrize("closed", [True, False])
async def test_a_page_can_ask_whether_it_needs_credentials(closed: bool) -> None:
    answer = await ask("/page/access", frontend(closed=closed))

    assert (answer.status, json.loads(answer.body)) == (200, {"credentials": closed})
    assert answer.headers.get("Cache-Control") == "no-store"


@pytest.mark.parametrize(
    "target", ["/page/", "/page/x", "/page/../operators.py", "/page/%2e%2e/page.py", "/index.html"]
)
async def test_nothing_but_these_files_is_served(target: str) -> None:
    assert (await ask(target)).status == 404


async def test_the_page_has_no_code_of_its_own_and_asks_for_nothing_from_elsewhere() -> None:
    """No inline script or style, which its policy would refuse, and no address of another site."""
    page = (WEB / "index.html").read_text()
    linked = re.findall(r'(?:src|href)="([^"]*)"', page)

    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page) == []
    assert {(await ask(target)).status for target in linked} == {200}
    for name in FILES:
        text = FILES[name].read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
