"""A page in a real browser: Debian's Chromium, by its DevTools protocol over two pipes."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

PATIENCE: Final = 60.0  # seconds until what must happen has not
WIDTH: Final = 1400  # pixels
_SWITCHES: Final = (
    *("--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *(f"--window-size={WIDTH},1200", "--remote-debugging-pipe"),
)
_END: Final = b"\0"  # of a message


@attrs.define(eq=False)
class Browser:
    """Shows one page; remembers what it was asked for and what it complained about."""

    to_browser: int
    from_browser: int
    requests: list[str] = attrs.field(factory=list)  # URLs
    complaints: list[str] = attrs.field(factory=list)
    _events: list[dict[str, Any]] = attrs.field(factory=list)
    _numbers: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    _rest: bytes = b""
    _page: str = ""

    def show(self, file: Path) -> None:
        """Return when it is loaded."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._page = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._receive())
        for event in self._events:
            self._look_at(event["method"], event["params"])

    def evaluate(self, script: str) -> Any:
        """What that expression of JavaScript is, on the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _look_at(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(str(params))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        question = {"id": number, "method": method, "params": params}
        if self._page:
            question["sessionId"] = self._page
        os.write(self.to_browser, json.dumps(question).encode() + _END)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self._events.append(message)

    def _receive(self) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE
        while _END not in self._rest:
            ready, _, _ = select.select([self.from_browser], [], [], ends - time.monotonic())
            assert ready, "the browser says nothing"
            piece = os.read(self.from_browser, 65536)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(_END)
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """One with a profile of its own; it is gone afterwards."""
    command = shutil.which("chromium")
    assert command is not None, "Chromium isn't installed: Debian's package is chromium"
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # It reads from descriptor 3 and writes to 4, whatever ours are.
    shell = f'exec "$@" 3</dev/fd/{their_in} 4>/dev/fd/{their_out}'
    rights = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", shell, "sh", command, *_SWITCHES, *rights, f"--user-data-dir={profile}"],
            pass_fds=(their_in, their_out),
            stdout=log,
            stderr=log,
        )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(our_out, our_in)
    finally:
        os.close(our_out)
        os.close(our_in)
        process.kill()
        process.wait()
