"""Steps of tests with the operators' page in a browser, and the pictures of the docs."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.frontends.admin.page_site import Site
from tests.harness.chromium import Browser, browser

ROOT: Final = Path(__file__).parents[3]
PICTURES: Final = ROOT / "docs" / "how-to" / "pictures"
# With this variable the pictures of the docs are drawn again.
DRAWS: Final = os.environ.get("PAIRGATE_PICTURES") == "1"
TEXT: Final = "document.body.innerText"
READ: Final = "!document.getElementById('figures').hidden"
RATES: Final = f"{READ} && !document.getElementById('ways').textContent.startsWith('Rates')"
WIDE: Final = (1080, 1250)
PHONE: Final = (390, 1250)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as one:
        yield one


def draw(chromium: Browser, name: str) -> None:
    if DRAWS:
        chromium.until(RATES)
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"page-{name}.webp").write_bytes(chromium.picture())


def open_page(chromium: Browser, site: Site, ready: str = RATES) -> None:
    chromium.show(site.url)
    chromium.resize(*WIDE)
    chromium.prefer("light")
    chromium.until(ready)


def click(chromium: Browser, selector: str) -> None:
    chromium.until(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
    chromium.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def text_of(chromium: Browser, identifier: str) -> str:
    return str(chromium.evaluate(f"document.getElementById('{identifier}').innerText"))


def type_into(chromium: Browser, identifier: str, text: str) -> None:
    chromium.evaluate(f"document.getElementById('{identifier}').select()")
    chromium.type(text)
