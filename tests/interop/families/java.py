"""
Java's clients: a Maven project in `java`, with a module for each suite. The tests are ours, as the
clients' own need Azure. Maven fetches what the project pins.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from gateway.demo.ports import free_port
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE, Gateway, gateway

PROJECT: Final = HERE / "java"
_UNTIL_MAVEN_RUNS: Final = 30  # seconds, about
_DOWN: Final = 8  # seconds
_OUTAGE_SECONDS: Final = 60  # of the producers: all of that and some time to come back
TRUST_PASSWORD: Final = "changeit"  # of a store that has no secret: Java's default


def _trust(served: Gateway) -> Path:
    """A trust store with the certificate of the gateway's authority."""
    store = served.folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "tests", "-file", served.authority]
    options = ["-keystore", store, "-storetype", "PKCS12", "-storepass", TRUST_PASSWORD]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return store


def _run(module: str, wishes: Wishes) -> dict[str, Result]:
    plain = free_port()
    with gateway("java.toml", name=module, hosts=("localhost",), plain=plain) as served:
        return _maven(module, served, plain, f"*{wishes.words}*,!OutageTest")


def _outage(wishes: Wishes) -> dict[str, Result]:
    """The primary is killed, started again, frozen and continued while Java's producers send."""
    pair: dict[str, Any] = {"name": "java-pair", "hosts": ("localhost",)}
    with (
        gateway("java-primary.toml", name="java-primary") as primary,
        gateway("java-pair.toml", **pair, primary=primary.port) as served,
        ThreadPoolExecutor() as pool,
    ):
        troubled = pool.submit(_trouble, primary)
        more = {"INTEROP_OUTAGE_SECONDS": str(_OUTAGE_SECONDS)}
        found = _maven("servicebus", served, served.port, "OutageTest", more)
        troubled.result()
    return found


def _trouble(primary: Gateway) -> None:
    time.sleep(_UNTIL_MAVEN_RUNS)
    primary.kill()
    time.sleep(_DOWN)
    primary.start()
    time.sleep(_DOWN)
    primary.process.send_signal(signal.SIGSTOP)
    time.sleep(_DOWN)
    primary.process.send_signal(signal.SIGCONT)


def _maven(
    module: str, served: Gateway, plain: int, chosen: str, more: Mapping[str, str] | None = None
) -> dict[str, Result]:
    environment = {
        "INTEROP_TLS_PORT": str(served.port),
        "INTEROP_PLAIN_PORT": str(plain),
        "INTEROP_TRUST": str(_trust(served)),
        "INTEROP_LOG": "off",
        **(more or {}),
    }
    reports = BUILD / "java" / f"{module}-reports"
    shutil.rmtree(reports, ignore_errors=True)
    options = [f"-Dinterop.build={BUILD / 'java'}", "-pl", module, f"-Dtest={chosen}"]
    subprocess.run(
        ["mvn", "-q", "-B", *options, "test"],
        cwd=PROJECT,
        env={**os.environ, **environment},
        check=False,
    )
    return dict(_results(reports))


def _results(reports: Path) -> Iterator[tuple[str, Result]]:
    """The results that Maven's Surefire has reported, by class and method."""
    for report in sorted(reports.glob("TEST-*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
            bad = case.find("failure") if case.find("error") is None else case.find("error")
            if bad is not None:
                yield name, Result(FAILED, (bad.get("message") or "").partition("\n")[0])
            elif case.find("skipped") is not None:
                yield name, Result(SKIPPED)
            else:
                yield name, Result(PASSED)


def _version(module: str, artifact: str) -> str:
    pom = (PROJECT / module / "pom.xml").read_text()
    (version,) = re.findall(rf"<artifactId>{artifact}</artifactId>\s*<version>(.*?)</version>", pom)
    return str(version)


def _missing() -> str:
    return ", ".join(each for each in ("java", "keytool", "mvn") if shutil.which(each) is None)


FAMILY: Final = Family(
    name="java",
    language="Java",
    suites=(
        Suite(
            name="java-servicebus",
            client="com.azure:azure-messaging-servicebus",
            version=_version("servicebus", "azure-messaging-servicebus"),
            what="synchronous, asynchronous, processors, sessions, transactions, rules, "
            "administration, WebSocket",
            run=partial(_run, "servicebus"),
        ),
        Suite(
            name="java-outage",
            client="com.azure:azure-messaging-servicebus",
            version=_version("servicebus", "azure-messaging-servicebus"),
            what="producers while the primary is killed, started again, frozen, continued",
            run=_outage,
        ),
        Suite(
            name="qpid-jms",
            client="org.apache.qpid:qpid-jms-client",
            version=_version("qpid-jms", "qpid-jms-client"),
            what="queues, transacted sessions, WebSocket, failover, topics; Spring's template and "
            "listener container",
            run=partial(_run, "qpid-jms"),
        ),
    ),
    missing=_missing,
)
