"""A page in a real browser: Debian's Chromium, by its DevTools protocol over two pipes."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from tests.harness.patience import PATIENCE

WIDTH: Final = 1400  # pixels
_SWITCHES: Final = (
    # With a mouse.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2",
    *("--headless=new", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *(f"--window-size={WIDTH},1200", "--remote-debugging-pipe"),
)
_END: Final = b"\0"  # of a message


@attrs.define(eq=False)
class Browser:
    """Shows one page; keeps the URLs that the page requested and the errors that it logged."""

    to_browser: int
    from_browser: int
    requests: list[str] = attrs.field(factory=list)  # URLs
    complaints: list[str] = attrs.field(factory=list)
    _events: list[dict[str, Any]] = attrs.field(factory=list)
    _numbers: "itertools.count[int]" = attrs.field(factory=lambda: itertools.count(1))
    _rest: bytes = b""
    _target: str = ""
    _page: str = ""

    def show(self, url: str) -> None:
        """Return when the page is loaded, in a tab of its own; the previous tab is closed."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        former, self._target = self._target, target
        self._page = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        if former:
            self._ask("Target.closeTarget", targetId=former)
        self.requests, self.complaints, self._events = [], [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._receive())

    def evaluate(self, script: str, *, world: int | None = None) -> Any:
        """
        Return the value of that JavaScript expression on the page; a promise is awaited. In
        another `world` it has the same elements and none of the page's variables or policies.
        """
        context = {} if world is None else {"contextId": world}
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **context
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Return the value of that expression once it is true; fail after `PATIENCE`."""
        ends = time.monotonic() + PATIENCE
        while not (value := self.evaluate(script)):
            assert time.monotonic() < ends, (script, self.evaluate("document.body.innerText"))
            time.sleep(0.02)
        return value

    def new_world(self) -> int:
        frame = self._ask("Page.getFrameTree")["frameTree"]["frame"]["id"]
        return int(self._ask("Page.createIsolatedWorld", frameId=frame)["executionContextId"])

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key, by its name and its code on Windows."""
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        texts = {"text": text} if text else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **shared, **texts)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **shared)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self._ask("Input.insertText", text=text)

    def prefer(self, scheme: str) -> None:
        """Prefer the colours `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._ask("Emulation.setEmulatedMedia", features=[feature])

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, in pixels."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self) -> bytes:
        """The window, as WebP: a tenth of its size as PNG."""
        shot = self._ask("Page.captureScreenshot", format="webp", quality=60)
        return b64decode(shot["data"])

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
        if self._page and not method.startswith("Target."):
            question["sessionId"] = self._page
        os.write(self.to_browser, json.dumps(question).encode() + _END)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "method" in message and message.get("sessionId") == self._page:
            self._events.append(message)
            self._look_at(message["method"], message["params"])

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
    """A browser with a profile of its own; its process ends with the context."""
    command = shutil.which("chromium")
    assert command is not None, "Chromium isn't installed: Debian's package is chromium"
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # Chromium reads from descriptor 3 and writes to 4, whichever descriptors the pipes have here.
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
