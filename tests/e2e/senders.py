"""
The official Service Bus SDK as producers under load, with the outcomes of their sends as history.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.checker.operations import Acked, Failed, Invoked, Record, Unknown, fingerprint
from gateway.domain.entity import EntityPath
from gateway.domain.message import Kind, Message, Typed
from tests.e2e.processes import GatewayProcess
from tests.harness.patience import PATIENCE

HERE: Final = Path(__file__).parent
PYTHON: Final = HERE.parents[1] / ".venv-azure" / "bin" / "python"
CREDENTIALS: Final = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
# The errors after which a message was not sent. After any other the outcome is unknown.
DEFINITE: Final = {
    "MessageSizeExceededError",
    "MessagingEntityDisabledError",
    "MessagingEntityNotFoundError",
    "ServiceBusAuthenticationError",
    "ServiceBusAuthorizationError",
    "ServiceBusQuotaExceededError",
    "ServiceBusServerBusyError",
}


@attrs.define(eq=False, kw_only=True)
class Senders:
    """A process with `senders` senders to a queue, each waiting for its answer."""

    gateway: GatewayProcess
    entity: EntityPath
    senders: int = 8
    pause: float = 0.02  # seconds, of a sender after each answer
    records: list[Record] = attrs.field(factory=list, init=False)
    acknowledged: int = attrs.field(default=0, init=False)
    errors: Counter[str] = attrs.field(factory=Counter, init=False)
    texts: dict[str, str] = attrs.field(factory=dict, init=False)  # the last of each error
    longest: float = attrs.field(default=0.0, init=False)  # seconds that a send took
    _under_way: dict[str, float] = attrs.field(factory=dict, init=False)
    _rests: int = attrs.field(default=0, init=False)
    _process: trio.Process = attrs.field(init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: bool = attrs.field(default=False, init=False)

    @property
    def described(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, errors {dict(self.errors)} {self.texts},"
            f" longest send {self.longest:.2f} s"
        )

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Return when the processes have stopped; a process that failed itself fails the test."""
        endpoint = f"Endpoint=sb://localhost:{self.gateway.port};{CREDENTIALS};"
        connection = f"{endpoint}UseDevelopmentEmulator=true;"
        options = [self.entity.name, str(self.senders), str(self.pause)]
        self._process = await trio.lowlevel.open_process(
            [str(PYTHON), str(HERE / "amqp_senders.py"), connection, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            await self.go()
            task_status.started()
            await self._read()
            code = await self._process.wait()
        finally:
            self._ended = True
            self._news.set()
            self._process.kill()
            with trio.move_on_after(PATIENCE, shield=True):
                await self._process.wait()
        assert code == 0, "the senders failed"

    async def go(self) -> None:
        await self._say("go")

    async def slow_down(self, pause: float) -> None:
        """Let each sender wait so many seconds after each answer, until `speed_up`."""
        await self._say(f"pause {pause}")

    async def speed_up(self) -> None:
        await self._say(f"pause {self.pause}")

    async def rest(self) -> None:
        """Return when every send has its answer."""
        rests = self._rests
        await self._say("rest")
        await self.until(lambda: self._rests > rests)

    async def stop(self) -> None:
        """Return when every send has its answer, and none follows."""
        await self._say("stop")
        await self.until(lambda: self._ended)

    async def until(self, happened: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE):
            while not happened():
                assert not self._ended, "the senders have ended"
                await self._news.wait()

    async def acknowledge(self, more: int) -> None:
        """Return when the given number of further messages was acknowledged."""
        wanted = self.acknowledged + more
        await self.until(lambda: self.acknowledged >= wanted)

    async def be_refused(self, more: int) -> None:
        """Return when the given number of further sends ended with an error."""
        wanted = self.errors.total() + more
        await self.until(lambda: self.errors.total() >= wanted)

    async def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(f"{command}\n".encode())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._note(*json.loads(line))
            self._news.set()
            self._news = trio.Event()

    def _note(self, what: str, name: str = "", *rest: Any) -> None:
        now = trio.current_time()
        match what, rest:
            case "at rest", ():
                self._rests += 1
            case "invoked", (number,):
                self._under_way[name] = now
                self.records.append(
                    Invoked(
                        at=now,
                        message_id=name,
                        entity=self.entity.key,
                        fingerprint=fingerprint(_message(name, number)),
                    )
                )
            case "acknowledged", ():
                self.acknowledged += 1
                self._answered(name, Acked)
            case "refused", (error, text):
                self.errors[error] += 1
                self.texts[error] = text
                self._answered(name, Failed if error in DEFINITE else Unknown)

    def _answered(self, name: str, kind: type[Acked] | type[Failed] | type[Unknown]) -> None:
        now = trio.current_time()
        self.longest = max(self.longest, now - self._under_way.pop(name))
        self.records.append(kind(at=now, message_id=name))


def _message(name: str, number: int) -> Message:
    """Return the message that `amqp_senders.py` sends under that name and number."""
    return Message(
        message_id=name,
        body=f"order {number}".encode(),
        subject="order",
        session_id=name.rpartition("-")[0],
        content_type="text/plain",
        properties={"number": Typed(Kind.INT, number), "sender": name},
    )
