"""
The commands and programs of the README, the tutorials and other pages, run as a newcomer runs them.

Only two things differ: each endpoint has a free port, and some intervals are shorter.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.listen import SERVER, noted, until_noted
from tests.e2e.processes import (
    ROOT,
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    fork_server,
)
from tests.e2e.rest import send, take
from tests.extensions.drill.drill import PAIR
from tests.harness.servers import kill
from tests.page_commands import PAIRGATE
from tests.pages import blocks, named_blocks, named_blocks_in

pytestmark = pytest.mark.slow

TUTORIAL = "docs/tutorial/first-outage.md"
CLIENTS = "docs/how-to/connect/connect-a-client.md"
ENCRYPT = "docs/how-to/secure/encrypt-the-backlog.md"
TLS = "docs/how-to/secure/tls.md"
FOR_ANYBODY, FOR_MANAGEMENT = blocks(CLIENTS, "toml")
BIND = re.compile(r'^bind = "127\.0\.0\.1:(\d+)"', re.MULTILINE)
EXAMPLE = (ROOT / "conf" / "examples" / "embedded.toml").read_text()
SDK = {
    "azure": ROOT / ".venv-azure" / "bin" / "python",
    "legacy": ROOT / ".venv-legacy" / "bin" / "python",
}


def on_free_ports(config: str) -> str:
    return BIND.sub('bind = "127.0.0.1:0"', config).replace('interval = "5s"', 'interval = "1s"')


def with_ports(text: str, ports: Mapping[str, int]) -> str:
    """The text with the ports of the page replaced by the ports of the endpoints here."""
    return re.sub(
        r"(?:(?<=:)|(?<=: ))\d{4,5}\b", lambda found: str(ports.get(found[0], found[0])), text
    )


def ports_of(gateway: GatewayProcess, config: str) -> dict[str, int]:
    return dict(zip(BIND.findall(config), gateway.ports, strict=True))


async def run(folder: Path, *command: str | Path, **variables: str) -> tuple[int, str]:
    result = await trio.run_process(
        [*map(str, command)],
        cwd=folder,
        env=environment() | variables,
        capture_stdout=True,
        check=False,
    )
    return result.returncode, result.stdout.decode()


async def pairgate(folder: Path, arguments: list[str]) -> tuple[int, str]:
    done = await fork_server().run(folder, arguments)
    return done.returncode, done.stdout.decode()


async def test_the_tutorial_is_what_happens(gateways: Gateways, tmp_path: Path) -> None:
    files = ("primary.toml", "secondary.toml", "gateway.toml")
    configs = dict(zip(files, blocks(TUTORIAL, "toml"), strict=True))
    processes: dict[str, GatewayProcess] = {}
    ports: dict[str, int] = {}
    shown: dict[str, list[tuple[int, str]]] = {}
    typed: list[str] = []
    for part in re.split(r"^## ", (ROOT / TUTORIAL).read_text(), flags=re.MULTILINE)[1:]:
        step = part[: part.index(".")]
        commands = [code for language, code in named_blocks_in(part) if language == "sh"]
        typed += commands
        if step == "6":
            assert part.startswith("6. Kill the primary")
            assert await processes["primary.toml"].stop() == 0
        for line in PAIRGATE.findall("".join(commands)):
            name, *arguments = shlex.split(line, comments=True)
            file = arguments[-1]
            (tmp_path / file).write_text(with_ports(on_free_ports(configs[file]), ports))
            if name != "serve":
                if file in processes:  # the gateway runs, and commands find it at its ports
                    (tmp_path / file).write_text(processes[file].config)
                if step == "7" and name == "status":
                    await processes[file].seen("backlog_empty", moved=2)
                done = await pairgate(tmp_path, [name, *arguments])
                shown.setdefault(f"{step} {name}", []).append(done)
            elif file in processes:
                await processes[file].start()
            else:
                text = (tmp_path / file).read_text()
                processes[file] = await gateways.start(text, name=file.removesuffix(".toml"))
                ports |= ports_of(processes[file], configs[file])

    assert [code for code, _ in shown["4 provision"] + shown["4 check"]] == [0, 0]
    assert [(code, text.strip()[-9:]) for code, text in shown["5 send"]] == [(0, "(primary)")]
    assert [(code, text.strip()[-9:]) for code, text in shown["6 send"]] == [(0, "(backlog)")] * 2
    [(code, text)] = shown["6 status"]
    assert code == 1
    assert "needs attention" in text.splitlines()[0]
    assert processes["gateway.toml"].count("namespace_lost") == 1
    assert [code for code, _ in shown["7 status"]] == [0]
    [(code, text)] = shown["7 receive"]
    assert code == 0
    assert all(word in text for word in ("one", "two", "three"))
    assert typed == blocks(TUTORIAL, "sh")


@pytest.fixture
async def gateway(gateways: Gateways) -> GatewayProcess:
    """The README's gateway, with the endpoint for the management client."""
    config = on_free_ports(f"{EXAMPLE}\n{FOR_MANAGEMENT}")
    process = gateways.prepare(config, name="example")
    process.folder.mkdir()
    typed = "".join(blocks(CLIENTS, "sh"))
    [certs] = [line for line in PAIRGATE.findall(typed) if line.startswith("certs")]
    code, _ = await pairgate(process.folder, shlex.split(certs, comments=True))
    assert code == 0
    await process.start()
    process.config_file.write_text(process.config)
    return process


@pytest.mark.parametrize(
    ("pasted_blocks", "wanted"),
    [
        pytest.param(named_blocks("README.md", "sh", "python"), 2, id="README"),
        pytest.param(named_blocks(CLIENTS, "sh", "python"), 4, id="CLIENTS"),
    ],
)
async def test_every_block_that_can_be_pasted_runs(
    pasted_blocks: list[tuple[str, str]], wanted: int, gateway: GatewayProcess
) -> None:
    """
    The blocks run in the order of the page, so that each finds the messages that earlier blocks
    left.
    """
    ports = ports_of(gateway, f"{EXAMPLE}\n{FOR_MANAGEMENT}")
    shown = list[str]()
    for language, code in pasted_blocks:
        pasted = with_ports(code, ports)
        if language == "python":
            sdk = "legacy" if "ServiceBusService" in code else "azure"
            status, output = await run(gateway.folder, SDK[sdk], "-c", pasted)
            assert status == 0, code
            shown.append(output)
        elif language == "sh" and "curl" in code:
            pasted = pasted.replace("$(pairgate ", f"$({sys.executable} -m gateway ")
            status, output = await run(gateway.folder, "sh", "-c", pasted)
            assert status == 0
            assert output.startswith("HTTP/1.1 201 Created")
            shown.append(output)
        elif language == "sh":
            for line in PAIRGATE.findall(code):
                name, *arguments = shlex.split(line, comments=True)
                if name not in {"serve", "certs"}:  # the fixture's
                    status, output = await pairgate(gateway.folder, [name, *arguments])
                    assert status == 0, line
                    shown.append(output)

    assert sum("hello" in output for output in shown) >= wanted, shown


async def test_an_anonymous_client_sends(gateways: Gateways) -> None:
    gateway = await gateways.start(on_free_ports(f"{EXAMPLE}\n{FOR_ANYBODY}"), name="anybody")
    [connects] = blocks(CLIENTS, "js")
    sends = """
        connection.once("sendable", ({ sender }) => sender.send({ body: "hello" }));
        connection.once("accepted", () => connection.close());
    """

    done = await node(with_ports(connects, ports_of(gateway, EXAMPLE)) + sends)
    assert await gateway.stop() == 0  # because the page's policy has no key to peek with
    code, peeked = await pairgate(gateway.folder, ["peek", "orders"])

    assert (done.returncode, code) == (0, 0)
    assert "hello" in peeked


async def node(program: str) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        ["node", "-e", program],
        env={**environment(), "NODE_PATH": str(ROOT / ".node" / "node_modules")},
        capture_stdout=True,
        check=False,
    )


async def test_the_code_for_node_runs(gateways: Gateways) -> None:
    gateway = await gateways.start(on_free_ports(EXAMPLE), name="node")
    ports = ports_of(gateway, EXAMPLE)

    for code in blocks("docs/how-to/connect/connect-from-node.md", "js"):
        done = await node(with_ports(code, ports))
        assert (done.returncode, done.stdout.strip()) == (0, b"hello"), code


async def test_a_backlog_is_encrypted_by_the_steps_of_the_page(gateways: Gateways) -> None:
    [make_the_key] = blocks(ENCRYPT, "sh")
    encrypted, _ = blocks(ENCRYPT, "toml")
    [told] = re.findall(r"`pairgate check` says `(.*?)`", (ROOT / ENCRYPT).read_text())
    gateway = gateways.prepare(PAIR.replace("[pairing]\n", encrypted.replace("encrypt = true", "")))
    gateway.folder.mkdir()

    assert (await run(gateway.folder, "sh", "-c", make_the_key))[0] == 0
    await gateway.start()
    gateway.config_file.write_text(
        gateway.config.replace("envelope_keys", "encrypt = true\nenvelope_keys")
    )
    gateway.signal(signal.SIGHUP)
    reloaded = await gateway.seen("reloaded")
    await gateway.stop()  # because `check` doesn't look at stores that it has open
    code, output = await pairgate(gateway.folder, ["check"])

    assert (reloaded["envelope_keys"], reloaded["needs_restart"]) == ("2026-11", "")
    assert code == 0
    assert told in output


async def test_the_worker_with_transactions_runs(gateways: Gateways) -> None:
    gateway = await gateways.start(on_free_ports(EXAMPLE), name="transactions")
    [worker] = blocks("docs/how-to/messages/use-transactions.md", "python")
    program = with_ports(worker, ports_of(gateway, EXAMPLE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, gateway.folder, sys.executable, "-c", program)
        for number in (b"1", b"2"):
            assert (await send(gateway.address, "orders", number))[0] == 201
        invoices = [await take(gateway.address, "invoices") for _ in range(2)]
        nursery.cancel_scope.cancel()

    assert all(invoice and b"invoice of" in invoice for invoice in invoices), invoices
    assert await take(gateway.address, "orders", wait=0) is None


async def test_the_client_of_the_page_on_tls_sends(gateways: Gateways) -> None:
    key = {"ORDERS_KEY": "a key of more than sixteen bytes"}
    gateways.environments["tls"] = key
    endpoint, _ = blocks(TLS, "toml")
    [make_certificates] = blocks(TLS, "sh")
    [program] = blocks(TLS, "python")
    config = f"{broker_config('orders')}\n{endpoint.replace('0.0.0.0:5671', '127.0.0.1:0')}"
    gateway = gateways.prepare(config, name="tls")
    gateway.folder.mkdir()
    [certs] = PAIRGATE.findall(make_certificates)
    assert (await pairgate(gateway.folder, shlex.split(certs, comments=True)))[0] == 0
    await gateway.start()
    pasted = with_ports(program, {"5671": gateway.ports[1]})

    status, _ = await run(gateway.folder, SDK["azure"], "-c", pasted, **key)

    assert status == 0
    assert await gateway.stop() == 0  # because the page's policy can only send
    peeked = await fork_server().run(gateway.folder, ["peek", "orders"], b"", key)
    assert b"hello" in peeked.stdout, peeked


CERTIFICATES = """
set -e
ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "$@"; }
ca -subj /CN=tests -keyout ca.key -out ca.pem
issue() {
    name=$1; shift
    ca -CA ca.pem -CAkey ca.key -keyout "$name.key" -out "$name.pem" "$@"
}
issue server -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1
issue subject -subj /O=Contoso/CN=orders
issue mesh -subj /CN=other -addext subjectAltName=URI:spiffe://cluster/ns/shop/sa/orders
issue stranger -subj /O=Contoso/CN=bills
openssl x509 -noout -subject -nameopt RFC2253 -in subject.pem
"""


async def test_certificates_have_the_rights_of_the_page(gateways: Gateways) -> None:
    _, rights = blocks(TLS, "toml")
    namespace = broker_config("orders", "bills").partition("[[endpoints]]")[0]
    config = namespace + rights.replace("0.0.0.0:5671", "127.0.0.1:0")
    gateway = gateways.prepare(config, name="tls")
    tls = gateway.folder / "tls"
    tls.mkdir(parents=True)
    status, subject = await run(tls, "sh", "-c", CERTIFICATES)
    assert status == 0
    await gateway.start()

    async def sent_by(name: str, queue: str) -> str:
        certificate = ["--cacert", "ca.pem", "--cert", f"{name}.pem", "--key", f"{name}.key"]
        url = f"https://localhost:{gateway.port}/{queue}/messages"
        told = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
        return (await run(tls, "curl", *told, *certificate, "--data", "hello", url))[1]

    assert subject.strip().removeprefix("subject=") in rights
    assert [await sent_by(name, "orders") for name in ("subject", "mesh")] == ["201", "201"]
    assert await sent_by("subject", "bills") == "401"
    assert await sent_by("stranger", "orders") == "401"


async def test_keys_of_a_service_come_from_the_command_of_the_page(gateways: Gateways) -> None:
    _, from_a_command = blocks(ENCRYPT, "toml")
    gateway = gateways.prepare("")
    gateway.folder.mkdir()
    command = program(
        gateway.folder / "envelope-key", 'echo "$1" >> asked; echo "$1$1$1$1$1$1"; echo no >&2'
    )
    pair = PAIR.replace("[pairing]\n", f"{from_a_command}encrypt = true\n")
    gateway.config = pair.replace("/usr/local/bin/envelope-key", str(command))
    await gateway.start()
    gateway.signal(signal.SIGHUP)
    reloaded = await gateway.seen("reloaded")
    await gateway.stop()  # because `check` doesn't look at stores that it has open
    code, output = await pairgate(gateway.folder, ["check"])

    assert reloaded["envelope_keys"] == "2026-11, 2026-05"
    assert code == 0
    assert "signed and encrypted with the key '2026-11'" in output
    asked = (gateway.folder / "asked").read_text().split()
    assert asked == ["2026-11", "2026-05"] * 3  # the start, the reload, and `check`


def program(path: Path, text: str) -> Path:
    """A program of the shell, in the place of another one that the page names."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


async def test_listeners_give_their_messages_to_an_endpoint_a_command_and_a_function(
    gateways: Gateways, tmp_path: Path
) -> None:
    [typed] = blocks("docs/how-to/run/run-listeners.md", "sh")
    port = free_port()
    work = program(tmp_path / "work", 'echo "$1:$PAIRGATE_QUEUE" >> notes')
    typed = typed.replace("/usr/local/bin/work", str(work)).replace(":8080/", f":{port}/")
    commands: list[Sequence[str]] = [shlex.split(line) for line in typed.splitlines()]
    (tmp_path / "server.py").write_text(SERVER)
    gateway = await gateways.start(broker_config("orders", "urgent", "bulk"), name="gateway")

    async def given(queues: str, command: Sequence[str]) -> list[str]:
        """The notes of the handler of that command, after a message to each of the queues."""
        name = f"listener-{commands.index(command)}"
        listener = gateways.prepare(gateway.config, name=name, command=command[1:])
        (listener.folder / "shop").mkdir(parents=True)
        (listener.folder / "shop" / "work.py").write_text(HANDLER)
        async with trio.open_nursery() as nursery:
            server = [sys.executable, str(tmp_path / "server.py"), str(port)]
            serve = partial(trio.run_process, server, cwd=listener.folder, deliver_cancel=kill)
            if "--to" in command:
                nursery.start_soon(serve)
            await listener.start()
            for queue in queues.split():
                assert (await send(gateway.address, queue, b"hello"))[0] == 201
            await until_noted(len(queues.split()), listener)
            assert await listener.stop() == 0
            nursery.cancel_scope.cancel()
        return sorted(noted(listener))

    endpoint, command, function = commands
    assert await given("orders", endpoint) == ["hello"]
    assert await given("urgent bulk", command) == ["--fast:bulk", "--fast:urgent"]
    assert await given("orders", function) == ["function:hello"]


HANDLER = """
def handle(item):
    with open("notes", "a") as notes:
        notes.write(f"function:{item.message.body.decode()}\\n")
"""
