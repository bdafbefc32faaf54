"""The operators' page in a real browser, with the statuses that it draws."""

import json
import time
from typing import Any, Final

import attrs

from benchmarks.honesty.judge import Drawn
from tests.harness.chromium import Browser

# The last two statuses that the page asked for: it may draw a newer one in this moment.
_OVERHEARD: Final = """
(() => {
  const ask = window.fetch;
  window.told = [];
  window.fetch = async (...request) => {
    const answer = await ask(...request);
    if (request[0] === "/status") {
      window.told = [...window.told.slice(-1), await answer.clone().json()];
    }
    return answer;
  };
})()
"""
_IS_DRAWN: Final = "window.told.length === 2 && !document.getElementById('summary').hidden"
_DRAWN: Final = """
JSON.stringify([
  document.getElementById("verdict").textContent,
  document.querySelector("#summary .state").textContent,
  [...document.querySelectorAll("#summary-figures > div")]
    .find((each) => each.querySelector("dt").textContent === "waiting")
    .querySelector("dd").firstChild.textContent,
  window.told,
])
"""


@attrs.define(eq=False)
class Page:
    """Shows the page of one process after the other."""

    browser: Browser

    def look(self, process: str, url: str) -> Drawn:
        """The page of that process, once it has its second status. Blocks."""
        self.browser.show(url)
        self.browser.evaluate(_OVERHEARD)
        self.browser.until(_IS_DRAWN)
        found: list[Any] = json.loads(self.browser.evaluate(_DRAWN))
        verdict, way_home, waiting, told = found
        return Drawn(
            process=process,
            end=time.time(),
            verdict=verdict,
            way_home=way_home,
            waiting=waiting,
            told=told,
        )
