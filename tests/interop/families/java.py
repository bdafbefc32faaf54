"""
Java's clients: a Maven project in `java`, with a module for each suite; Maven fetches what it pins.
The tests are ours, except the retired client's, which are those of its repository. Some clients
know no port but Azure's: their gateway has these at an address of its own, to which Java's hosts
file leads the name of the namespace.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from gateway.demo.ports import free_port
from tests.interop.clones import Clone
from tests.interop.family import FAILED, PASSED, SKIPPED, Family, Result, Suite, Wishes
from tests.interop.gateways import BUILD, HERE, HOST, KEY, Gateway, gateway

PROJECT: Final = HERE / "java"
ENTITIES: Final = HERE / "java-entities.json"  # of the primary, in the outages
_UNTIL_MAVEN_RUNS: Final = 240  # seconds, on a busy machine
_BEFORE: Final = 5  # seconds from the first send
_DOWN: Final = 8  # seconds
_OUTAGE_SECONDS: Final = 60  # of the producers: all of that and some time to come back
TRUST_PASSWORD: Final = "changeit"  # of a store that has no secret: Java's default
ADDRESSES: Final = {"legacy": "127.0.0.46", "spring": "127.0.0.47"}  # where its ports are free
PORTS: Final = (443, 5671)  # of Azure
LEGACY: Final = Clone("Azure/azure-service-bus-java", "1.2.18")
_LEGACY_TESTS: Final = "azure-servicebus/src/test/java"


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
    """The primary is killed, started again, frozen and continued while Java's clients work."""
    pair: dict[str, Any] = {"name": "java-pair", "hosts": ("localhost",)}
    files = {ENTITIES.name: ENTITIES.read_bytes()}
    with (
        gateway("java-primary.toml", name="java-primary", files=files) as primary,
        gateway("java-pair.toml", **pair, primary=primary.port) as served,
        ThreadPoolExecutor() as pool,
    ):
        begun = served.folder / "begun"
        troubled = pool.submit(_trouble, primary, begun)
        more = {"INTEROP_OUTAGE_SECONDS": str(_OUTAGE_SECONDS), "INTEROP_BEGUN": str(begun)}
        found = _maven("servicebus", served, served.port, "OutageTest", more)
        troubled.result()
    return found


def _as_azure(
    module: str, chosen: str, wishes: Wishes, more: Mapping[str, str] | None = None
) -> dict[str, Result]:
    """Against a gateway that has the name and the ports of a namespace in Azure."""
    with gateway("azure.toml", name=module, address=(address := ADDRESSES[module])) as served:
        hosts = served.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{address} {HOST}\n")
        places = {"INTEROP_HOSTS": str(hosts), **(more or {})}
        return _maven(module, served, served.port, f"*{wishes.words or chosen}*", places)


def _legacy(wishes: Wishes) -> dict[str, Result]:
    """The tests of the repository, unmodified."""
    folder = BUILD / "java" / "legacy-tests"
    LEGACY.unpack(folder, _LEGACY_TESTS)
    name = "RootManageSharedAccessKey"
    more = {
        "INTEROP_TESTS": str(folder / _LEGACY_TESTS),
        "AZURE_SERVICEBUS_JAVA_CLIENT_TEST_CONNECTION_STRING": f"Endpoint=sb://{HOST}/;"
        f"SharedAccessKeyName={name};SharedAccessKey={KEY}",
    }
    return _as_azure("legacy", "Tests", wishes, more)


def _trouble(primary: Gateway, begun: Path) -> None:
    limit = time.monotonic() + _UNTIL_MAVEN_RUNS
    while not begun.exists():
        if time.monotonic() > limit:
            raise TimeoutError("no producer has begun")
        time.sleep(0.1)
    time.sleep(_BEFORE)
    primary.kill()
    time.sleep(_DOWN)
    primary.start()
    (begun.parent / "back").touch()
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
    return dict(results_in(reports))


def results_in(reports: Path) -> Iterator[tuple[str, Result]]:
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


def version_of(module: str, artifact: str) -> str:
    pom = (PROJECT / module / "pom.xml").read_text()
    (version,) = re.findall(rf"<artifactId>{artifact}</artifactId>\s*<version>(.*?)</version>", pom)
    return str(version)


def _missing() -> str:
    return ", ".join(each for each in ("java", "keytool", "mvn") if shutil.which(each) is None)


def _missing_as_azure(module: str) -> str:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESSES[module], port))
            except OSError as error:
                return f"port {port} of {ADDRESSES[module]}: {error}"
    return _missing()


FAMILY: Final = Family(
    name="java",
    language="Java",
    suites=(
        Suite(
            name="java-servicebus",
            client="com.azure:azure-messaging-servicebus",
            version=version_of("servicebus", "azure-messaging-servicebus"),
            what="synchronous, asynchronous, processors, sessions, transactions, rules, "
            "administration, WebSocket",
            run=partial(_run, "servicebus"),
        ),
        Suite(
            name="java-outage",
            client="com.azure:azure-messaging-servicebus",
            version=version_of("servicebus", "azure-messaging-servicebus"),
            what="producers, a processor and one of sessions, while the primary is killed, started "
            "again, frozen, continued",
            run=_outage,
        ),
        Suite(
            name="qpid-jms",
            client="org.apache.qpid:qpid-jms-client",
            version=version_of("qpid-jms", "qpid-jms-client"),
            what="queues, transacted sessions, WebSocket, failover, topics; Spring's template and "
            "listener container",
            run=partial(_run, "qpid-jms"),
        ),
    ),
    missing=_missing,
)
SPRING: Final = Family(
    name="spring",
    language="Java",
    suites=(
        Suite(
            name="spring-cloud-azure",
            client="spring-cloud-azure-starter-servicebus-jms",
            version=version_of("spring", "spring-cloud-azure-starter-servicebus-jms"),
            what="templates and listeners of queues and subscriptions; the same, clients by "
            "properties and replies with `spring-messaging-azure-servicebus`",
            run=lambda wishes: _as_azure("spring", "StarterTest", wishes),
        ),
    ),
    missing=partial(_missing_as_azure, "spring"),
)
RETIRED: Final = Family(
    name="java-legacy",
    language="Java",
    suites=(
        Suite(
            name="azure-servicebus-java",
            client="com.microsoft.azure:azure-servicebus",
            version=version_of("legacy", "azure-servicebus"),
            what="retired; its own tests, with the ports of Azure",
            run=_legacy,
        ),
    ),
    missing=lambda: LEGACY.missing() or _missing_as_azure("legacy"),
)
