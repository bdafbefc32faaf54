"""
The commands and programs of the README, the tutorials and other pages, run as a newcomer runs them.

Only two things differ: each endpoint has a free port, and some intervals are shorter.
"""

import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.e2e.processes import (
    ROOT,
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    fork_server,
)
from tests.e2e.rest import send, take
from tests.e2e.test_drill import PAIR
from tests.test_readme import CLIENTS, DOCS, PAIRGATE, README, TUTORIAL, blocks, named_blocks

pytestmark = pytest.mark.slow

ENCRYPT = (DOCS / "how-to" / "encrypt-the-backlog.md").read_text()
TRANSACTIONS = (DOCS / "how-to" / "use-transactions.md").read_text()
TLS = (DOCS / "how-to" / "tls.md").read_text()
NODE = (DOCS / "how-to" / "connect-from-node.md").read_text()
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
    return re.sub(r":(\d{4,5})\b", lambda found: f":{ports.get(found[1], found[1])}", text)


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
    for part in re.split(r"^## ", TUTORIAL, flags=re.MULTILINE)[1:]:
        step = part[: part.index(".")]
        if step == "6":
            assert part.startswith("6. Kill the primary")
            assert await processes["primary.toml"].stop() == 0
        for line in (line for code in blocks(part, "sh") for line in PAIRGATE.findall(code)):
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


@pytest.fixture
async def gateway(gateways: Gateways) -> GatewayProcess:
    """The README's gateway, with the endpoint for the management client."""
    [endpoint] = [code for code in blocks(CLIENTS, "toml") if "tls = {" in code]
    config = on_free_ports(f"{EXAMPLE}\n{endpoint}")
    process = gateways.prepare(config, name="example")
    process.folder.mkdir()
    [certs] = [line for line in PAIRGATE.findall(CLIENTS) if line.startswith("certs")]
    code, _ = await pairgate(process.folder, shlex.split(certs, comments=True))
    assert code == 0
    await process.start()
    process.config_file.write_text(process.config)
    return process


@pytest.mark.parametrize("page", ["README", "CLIENTS"])
async def test_every_block_that_can_be_pasted_runs(page: str, gateway: GatewayProcess) -> None:
    """
    The blocks run in the order of the page, so that each finds the messages that earlier blocks
    left.
    """
    text = {"README": README, "CLIENTS": CLIENTS}[page]
    [endpoint] = [code for code in blocks(CLIENTS, "toml") if "tls = {" in code]
    ports = ports_of(gateway, f"{EXAMPLE}\n{endpoint}")
    shown = list[str]()
    for language, code in named_blocks(text):
        pasted = with_ports(code, ports)
        if language == "python":
            sdk = "legacy" if "ServiceBusService" in code else "azure"
            status, output = await run(gateway.folder, SDK[sdk], "-c", pasted)
            assert status == 0, code
            shown.append(output)
        elif language == "sh" and "curl" in code:
            pasted = pasted.replace(".venv/bin/pairgate", f"{sys.executable} -m gateway")
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

    hellos = sum("hello" in output for output in shown)
    assert hellos >= {"README": 2, "CLIENTS": 4}[page], shown


async def test_the_code_for_node_runs(gateways: Gateways) -> None:
    gateway = await gateways.start(on_free_ports(EXAMPLE), name="node")
    ports = ports_of(gateway, EXAMPLE)
    modules = {"NODE_PATH": str(ROOT / ".node" / "node_modules")}

    for code in blocks(NODE, "js"):
        done = await trio.run_process(
            ["node", "-e", with_ports(code, ports)],
            env={**environment(), **modules},
            capture_stdout=True,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, b"hello"), code


async def test_a_backlog_is_encrypted_by_the_steps_of_the_page(gateways: Gateways) -> None:
    [make_the_key] = blocks(ENCRYPT, "sh")
    encrypted = blocks(ENCRYPT, "toml")[0]
    [told] = re.findall(r"`pairgate check` says `(.*?)`", ENCRYPT)
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
    [worker] = blocks(TRANSACTIONS, "python")
    program = with_ports(worker, ports_of(gateway, EXAMPLE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, gateway.folder, sys.executable, "-c", program)
        for number in (b"1", b"2"):
            assert (await send(gateway.address, "orders", number))[0] == 201
        invoices = [await take(gateway.address, "invoices", wait=30) for _ in range(2)]
        nursery.cancel_scope.cancel()

    assert all(invoice and b"invoice of" in invoice for invoice in invoices), invoices
    assert await take(gateway.address, "orders", wait=0) is None


async def test_the_client_of_the_page_on_tls_sends(gateways: Gateways) -> None:
    key = {"ORDERS_KEY": "a key of more than sixteen bytes"}
    gateways.environments["tls"] = key
    endpoint = blocks(TLS, "toml")[0].replace("0.0.0.0:5671", "127.0.0.1:0")
    config = f"{broker_config('orders')}\n{endpoint}"
    gateway = gateways.prepare(config, name="tls")
    gateway.folder.mkdir()
    [certs] = PAIRGATE.findall(blocks(TLS, "sh")[0])
    assert (await pairgate(gateway.folder, shlex.split(certs, comments=True)))[0] == 0
    await gateway.start()
    program = with_ports(blocks(TLS, "python")[0], {"5671": gateway.ports[1]})

    status, _ = await run(gateway.folder, SDK["azure"], "-c", program, **key)

    assert status == 0
    assert await gateway.stop() == 0  # because the page's policy can only send
    peeked = await fork_server().run(gateway.folder, ["peek", "orders"], b"", key)
    assert b"hello" in peeked.stdout, peeked
