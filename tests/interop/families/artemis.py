"""
ActiveMQ Artemis as both namespaces of a pair, over AMQP 1.0. Producers send to a gateway while a
broker is killed, frozen or full. None of them may get an error, and each message that was
acknowledged must come out.
"""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Final

import attrs

from gateway.demo.ports import free_port
from gateway.wire.servicebus.sas import sign_sas
from tests.interop.family import FAILED, PASSED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE, KEY, Gateway, gateway

POM: Final = HERE / "java" / "artemis" / "pom.xml"
FOLDER: Final = BUILD / "artemis"
BESIDE: Final = ("artemis/x-pairgate-syphons",)  # of the pair, beside its backlog
QUEUES: Final = ("orders", *(f"artemis/x-servicebus-transfer/{n}" for n in range(2)), *BESIDE)
OUTAGE: Final = 12.0  # seconds: longer than the failover interval, so that the backlog is used
AROUND: Final = 4.0  # seconds of sends before and after
PATIENCE: Final = 120.0  # seconds for the backlog's way home, on a busy machine
PRODUCERS: Final = 4
PAUSE: Final = 0.02  # seconds between two sends of a producer
LARGE: Final = 20_000  # bytes: an address is full after some fifty


@attrs.define(eq=False)
class Artemis:
    """A broker, which keeps its messages when it is killed."""

    name: str
    policy: str
    port: int = attrs.field(factory=free_port)
    process: "subprocess.Popen[bytes]" = attrs.field(init=False)

    def start(self) -> None:
        """Return when it accepts connections."""
        classes = f"{FOLDER / 'classes'}:{(FOLDER / 'classpath').read_text()}"
        place = [str(self.port), str(FOLDER / self.name), self.policy]
        with (FOLDER / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                ["java", "-Xmx256m", "-cp", classes, "pairgate.Broker", *place, *QUEUES],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None, "it is a pipe"
        if b"ready" not in self.process.stdout.readline():
            sys.exit(f"Artemis has ended: {FOLDER / self.name}.log")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number is signal.SIGKILL:
            self.process.wait()


@attrs.define(eq=False)
class Producers:
    """Threads that send, and note each answer."""

    port: int
    padding: int = 0  # bytes
    accepted: list[str] = attrs.field(factory=list, init=False)
    errors: list[str] = attrs.field(factory=list, init=False)
    slowest: float = attrs.field(default=0.0, init=False)
    _stopped: threading.Event = attrs.field(factory=threading.Event, init=False)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._send, args=(n,)) for n in range(PRODUCERS)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stopped.set()
            for each in threads:
                each.join()

    def _send(self, producer: int) -> None:
        client, number = Client(self.port), 0
        while not self._stopped.wait(PAUSE):
            number += 1
            name, begun = f"{producer}-{number}", time.monotonic()
            status, text, _ = client.ask("POST", "/orders/messages", name.ljust(self.padding))
            self.slowest = max(self.slowest, time.monotonic() - begun)
            if status == 201:
                self.accepted.append(name)
            else:
                self.errors.append(f"{status} {text[:200]}")


@attrs.define(eq=False)
class Client:
    port: int
    _connection: HTTPConnection | None = attrs.field(default=None, init=False)

    def ask(self, method: str, path: str, body: str = "") -> tuple[int, str, str]:
        """Return the status, the body, and the Location; the status is 0 without an answer."""
        token = sign_sas("http://127.0.0.1/", "all", KEY, int(time.time()) + 600)
        if self._connection is None:
            self._connection = HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            self._connection.request(method, path, body, {"Authorization": token})
            answer = self._connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, HTTPException) as error:
            self._connection = None
            return 0, repr(error), ""
        return answer.status, text, answer.headers.get("Location", "")

    def receive(self, wanted: set[str]) -> Counter[str]:
        """Receive and complete until all of `wanted` were there, or for `PATIENCE`."""
        found: Counter[str] = Counter()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not wanted <= found.keys():
            status, text, location = self.ask("POST", "/orders/messages/head?timeout=2")
            if status == 201:
                found[text.strip()] += 1
                self.ask("DELETE", re.sub(r"https?://[^/]+", "", location))
        return found


Fault = Callable[[Artemis, Artemis], None]


def _killed(primary: Artemis, secondary: Artemis) -> None:
    primary.signal(signal.SIGKILL)
    time.sleep(OUTAGE)
    primary.start()


def _frozen(primary: Artemis, secondary: Artemis) -> None:
    primary.signal(signal.SIGSTOP)
    time.sleep(OUTAGE)
    primary.signal(signal.SIGCONT)


def _secondary_killed(primary: Artemis, secondary: Artemis) -> None:
    """The broker that has the backlog is killed, once the primary is back."""
    primary.signal(signal.SIGKILL)
    time.sleep(OUTAGE)
    primary.start()
    secondary.signal(signal.SIGKILL)
    time.sleep(AROUND)
    secondary.start()


def _secondary_frozen(primary: Artemis, secondary: Artemis) -> None:
    _frozen(secondary, primary)


def _full(primary: Artemis, secondary: Artemis) -> None:
    time.sleep(OUTAGE)


@attrs.frozen
class Scenario:
    fault: Fault
    policy: str = "PAGE"  # the broker's own default
    padding: int = 0


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "primary killed": Scenario(_killed),
    "primary frozen": Scenario(_frozen),
    "primary's address full, BLOCK": Scenario(_full, "BLOCK", LARGE),
    "primary's address full, FAIL": Scenario(_full, "FAIL", LARGE),
    "secondary killed with the backlog": Scenario(_secondary_killed),
    "secondary frozen": Scenario(_secondary_frozen),
}


def _run(wishes: Wishes) -> dict[str, Result]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    build = ["mvn", "--quiet", "--batch-mode", "--file", str(POM), f"-Dinterop.build={FOLDER}"]
    subprocess.run([*build, "compile", "dependency:build-classpath"], check=True)
    chosen = {name: each for name, each in SCENARIOS.items() if wishes.words in name}
    return {name: _tried(number, each) for number, (name, each) in enumerate(chosen.items())}


def _tried(number: int, scenario: Scenario) -> Result:
    primary = Artemis(f"{number}-primary", scenario.policy)
    secondary = Artemis(f"{number}-secondary", "PAGE")
    brokers = (primary, secondary)
    try:
        for each in brokers:
            each.start()
        ports = {"primary": primary.port, "secondary": secondary.port, "admin": free_port()}
        with gateway("artemis.toml", name=f"artemis/{number}-gateway", **ports) as served:
            return _judged(served, scenario, brokers)
    finally:
        for each in brokers:
            each.signal(signal.SIGKILL)


def _judged(served: Gateway, scenario: Scenario, brokers: tuple[Artemis, Artemis]) -> Result:
    producers = Producers(served.port, scenario.padding)
    with producers.at_work():
        time.sleep(AROUND)
        scenario.fault(*brokers)
        time.sleep(AROUND)
    sent = set(producers.accepted)
    found = Client(served.port).receive(sent)
    lost, copies = sent - found.keys(), sum(found.values()) - len(found)
    said = f"{len(sent)} sent, {len(lost)} lost, {copies} copies, {len(producers.errors)} errors"
    said += f", the slowest send {producers.slowest:.1f} s; {Counter(producers.errors)}"
    wrong = bool(lost or producers.errors or not sent)
    return Result(FAILED if wrong else PASSED, said)


def _missing() -> str:
    lacks = [each for each in ("java", "mvn") if shutil.which(each) is None]
    return f"{' and '.join(lacks)} on the path" if lacks else ""


def _version() -> str:
    (version,) = re.findall(r"<artemis.version>(.+)</artemis.version>", POM.read_text())
    return str(version)


FAMILY: Final = Family(
    name="artemis",
    language="Java",
    suites=(
        Suite(
            name="artemis",
            client="org.apache.activemq:artemis-server",
            version=_version(),
            what="as primary and secondary: killed, frozen, with a full address, under producers",
            run=_run,
        ),
    ),
    missing=_missing,
)
