"""Applications' own tests meet faults: by the fixture, by the command, and as the page shows."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import trio

from tests.e2e.commands import run as pairgate
from tests.e2e.processes import ROOT, GatewayProcess, Gateways, environment
from tests.pages import blocks

pytestmark = pytest.mark.slow

PAGE = "docs/how-to/connect/test-with-faults.md"
APPLICATIONS = ROOT / "tests" / "extensions" / "faults"
PLUGIN = "gateway.extensions.faults.testing"
[CONFIG] = blocks(PAGE, "toml")
[RESENDING] = blocks("docs/how-to/connect/send-through-outages.md", "python")
AT_RESENDING = """
import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError

@pytest.fixture
def client(pairgate):
    with ServiceBusClient.from_connection_string(pairgate.connection_string, retry_total=0) as one:
        yield one

@pytest.mark.parametrize(("kind", "copies"), [
    ("busy", 1), ("fail", 1), ("detach", 1), ("drop", 1), ("lose", 2),
])
def test_a_message_is_sent_until_it_is_stored(kind, copies, pairgate, client):
    queue = pairgate.new_queue()
    pairgate.fault(kind, entity=queue, operation="send", count=1)
    with client.get_queue_sender(queue) as sender:
        send(sender, "4711", pause=0.0)
    with client.get_queue_receiver(queue) as receiver:
        found = receiver.peek_messages(10)
    assert list(pairgate.faults()) == []
    assert [str(each) for each in found] == ["4711"] * copies
    assert len({each.message_id for each in found}) == 1

def test_an_error_that_is_no_outage_is_raised_at_once(pairgate, client):
    with pytest.raises(MessagingEntityNotFoundError), client.get_queue_sender("missing") as sender:
        send(sender, "4711")

def test_an_outage_without_end_is_raised_after_a_while(pairgate, client):
    queue = pairgate.new_queue()
    fault = pairgate.fault("fail", entity=queue, operation="send")
    with pytest.raises(ServiceBusError), client.get_queue_sender(queue) as sender:
        send(sender, "4711", patience=20.0, pause=1.0)
    assert fault.times > 1
"""
KINDS = ("busy", "fail", "detach", "drop", "lose", "delay")
# Of the application for Node: for each kind a queue, and two more.
ADDED = [
    *(f"{kind} --entity {kind} --operation send --count 1 --delay 100ms" for kind in KINDS),
    "busy --entity orders --operation send --count 2",
    "detach --entity bills --operation receive --count 1",
    "busy --entity bills --operation settle --count 1",
]


async def run(folder: Path, *command: str, **variables: str) -> tuple[int, str]:
    done = await trio.run_process(
        [*command], cwd=folder, env=environment() | variables, capture_stdout=True, check=False
    )
    return done.returncode, done.stdout.decode()


async def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """As in an application's environment, which has Pairgate and the SDKs."""
    [site] = (ROOT / ".venv-azure" / "lib").glob("python*/site-packages")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return await run(folder, *command, PYTHONPATH=f"{ROOT}{os.pathsep}{site}")


def free(config: str, *queues: str) -> str:
    """The page's configuration on free ports, with these queues."""
    config = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", config)
    return config.replace('["orders"]', json.dumps(queues))


def connection_of(gateway: GatewayProcess) -> str:
    return (
        f"Endpoint=sb://{gateway.address};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )


async def test_a_python_application_meets_each_kind_by_the_fixture(tmp_path: Path) -> None:
    # In a folder of its own, as pytest would find the settings of this repository.
    text = (APPLICATIONS / "python_application.py").read_text()
    (tmp_path / "test_application.py").write_text(text)

    code, output = await run_pytest(tmp_path, "-p", PLUGIN)

    assert code == 0, output


async def test_a_node_application_meets_each_kind_by_the_command(gateways: Gateways) -> None:
    gateway = await gateways.start(free(CONFIG, *KINDS, "orders", "bills"))
    for words in ADDED:
        assert (await pairgate(gateway.folder, "fault", "add", *words.split()))[0] == 0

    code, output = await run(
        gateway.folder,
        "node",
        "--test",
        str(APPLICATIONS / "node_application.js"),
        NODE_PATH=str(ROOT / ".node" / "node_modules"),
        CONNECTION=connection_of(gateway),
    )
    listed = await pairgate(gateway.folder, "fault", "list")

    assert code == 0, output
    assert listed[:2] == (0, "no fault is in force\n")
    await gateway.until(
        lambda: gateway.count("fault_added") == gateway.count("fault_over") == len(ADDED)
    )


async def test_the_page_is_what_happens(gateways: Gateways, tmp_path: Path) -> None:
    files = ("conftest.py", "test_shop.py")
    for name, text in zip(files, blocks(PAGE, "python"), strict=True):
        (tmp_path / name).write_text(text)
    gateway = await gateways.start(free(CONFIG, "orders"))
    [commands] = blocks(PAGE, "sh")
    [test] = blocks(PAGE, "js")
    for page, own in zip((5672, 9640), gateway.ports, strict=True):
        test = test.replace(f":{page}", f":{own}")
    (gateway.folder / "test.js").write_text(test)
    (gateway.folder / "pairgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    (gateway.folder / "pairgate").chmod(0o755)

    in_python = await run_pytest(tmp_path)
    typed = [
        await pairgate(gateway.folder, *shlex.split(line)[1:]) for line in commands.splitlines()
    ]
    in_node = await run(
        gateway.folder,
        "node",
        "--test",
        "test.js",
        NODE_PATH=str(ROOT / ".node" / "node_modules"),
        PATH=f"{gateway.folder}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
    )

    assert in_python[0] == 0, in_python[1]
    told = "1  busy of send on orders, 2 more; 0 so far\n"
    assert [each[:2] for each in typed] == [(0, told)] * 3
    assert in_node[0] == 0, in_node[1]


async def test_a_gateway_that_does_not_allow_them_says_how(gateways: Gateways) -> None:
    gateway = await gateways.start(free(CONFIG, "orders").partition("[faults]")[0])

    added = await pairgate(gateway.folder, "fault", "add", "busy")
    listed = await pairgate(gateway.folder, "fault", "list")

    assert added[0] == 1
    assert "`[faults]` with `allowed = true`" in added[2]
    assert listed[:2] == (0, "the gateway's configuration doesn't allow faults\n")


async def test_the_code_of_the_page_sends_again_with_the_same_id(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(RESENDING + AT_RESENDING)

    code, output = await run_pytest(tmp_path, "-p", PLUGIN)

    assert code == 0, output
    assert "7 passed" in output
