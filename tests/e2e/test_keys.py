"""Keys of clients are changed while they send, without a restart and without a refused one."""

import http.client
import json
import re
import signal
from base64 import b64encode
from typing import Any, Final

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

from gateway.cli import main
from tests.e2e.commands import status_at
from tests.e2e.processes import (
    GatewayProcess,
    Gateways,
    broker_config,
    environment,
    pair_config,
)
from tests.e2e.rest import send, send_with, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

OLD = "the old key of sixteen bytes"
NEW = "the new key of sixteen bytes"
KEYS: Final = re.compile(r"envelope_keys = \[.*\]")
ACCESS = """
[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[[access]]
name = "orders"
key = { file = "orders.key" }
rights = ["Manage"]
"""


async def rotate(process: GatewayProcess, *words: str) -> Result:
    arguments = ["keys", "rotate", *words, "--json", "--config", str(process.config_file)]
    runner = CliRunner(env=environment())
    return await trio.to_thread.run_sync(runner.invoke, main, arguments)


async def keys(process: GatewayProcess, *words: str, code: int = 0) -> dict[str, Any]:
    done = await rotate(process, *words)
    assert done.exit_code == code, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    return value


async def until_it_knows(gateway: GatewayProcess, kind: str) -> None:
    """Return once the gateway has read the record of a process of that kind."""
    with trio.fail_after(PATIENCE):
        while True:
            known = (await status_at(gateway.ports[-1]))["pair"]["processes"]
            if kind in {each["name"].split()[0] for each in known}:
                return
            await trio.sleep(0.5)


def operators_status(port: int, name: str, key: str) -> int:
    """The status of an answer to an operator with that key, at an endpoint `admin`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        text = b64encode(f"{name}:{key}".encode()).decode()
        connection.request("GET", "/v1/control", headers={"Authorization": f"Basic {text}"})
        return connection.getresponse().status
    finally:
        connection.close()


async def test_clients_with_the_old_and_the_new_key_are_served_until_the_rotation_is_finished(
    gateways: Gateways,
) -> None:
    process = gateways.prepare(broker_config("orders") + ACCESS)
    process.folder.mkdir()
    file = process.folder / "orders.key"
    file.write_text(OLD)
    file.chmod(0o600)
    await process.start()

    async def statuses(*of: str) -> list[int]:
        return [await send_with(process.address, "orders", "orders", key) for key in of]

    before = await statuses(OLD)
    begun = await keys(process, "orders")
    new = file.read_text().strip()
    during = await statuses(OLD, new)
    again = await keys(process, "orders")
    finished = await keys(process, "orders", "--finish")
    after = await statuses(OLD, new)

    assert (before, during, after) == ([201], [201, 201], [401, 201])
    assert [each["changed"] for each in (begun, again, finished)] == [True, False, True]
    assert all(str(process.ports[1]) in each["reloaded"] for each in (begun, again, finished))
    assert file.read_text().strip() == new
    await process.until(lambda: process.count("reloaded") == 3)


@pytest.mark.parametrize("admin", [True, False], ids=["with an endpoint", "without an endpoint"])
async def test_a_backlog_under_two_keys_comes_home_after_both_processes_have_reloaded(
    gateways: Gateways, admin: bool
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    await primary.kill()
    config = pair_config(
        primary.address,
        secondary.address,
        backlog_queues=1,
        enable_syphon=False,
        failover_interval="0s",
    )
    for process in ("serve", "syphon") if admin else ():
        config += (
            f'\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\nprocess = "{process}"'
        )
    files = [gateways.folder / name for name in ("first", "second")]
    for file in files:
        file.write_text(f"the {file.name} envelope key, for tests only")
        file.chmod(0o600)
    one, two = (f'{{ id = "{each.name}", key = {{ file = "{each}" }} }}' for each in files)
    config = KEYS.sub(f"envelope_keys = [{one}]", config)
    gateway = await gateways.start(config, name="gateway")
    syphon = await gateways.start(gateway.config, name="syphon", command=("syphon",))

    sent = [await send(gateway.address, "orders", b"1")]
    for keys_now in (f"{one}, {two}", f"{two}, {one}"):
        for process in (gateway, syphon):
            text = KEYS.sub(f"envelope_keys = [{keys_now}]", process.config)
            process.config_file.write_text(text)
            process.signal(signal.SIGHUP)
            ids = ", ".join(re.findall('id = "([a-z]+)"', keys_now))
            await process.seen("reloaded", envelope_keys=ids)
    sent.append(await send(gateway.address, "orders", b"2"))
    await primary.start()
    home = {await take(primary.address, "orders") for _ in sent}

    assert sent == [(201, "backlog")] * 2
    assert home == {b"1", b"2"}
    assert syphon.count("left_untouched") == 0


async def test_a_syphon_elsewhere_reads_its_keys_again_and_tells_which_it_has(
    gateways: Gateways,
) -> None:
    """The syphon has no endpoint for operators, and a file of its own, as on another machine."""
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    key = gateways.folder / "envelope-1"
    key.write_text("the first envelope key, for tests only")
    key.chmod(0o600)
    first = f'{{ id = "1", key = {{ file = "{key}" }} }}'
    config = pair_config(primary.address, secondary.address, enable_syphon=False)
    config = KEYS.sub(f"envelope_keys = [{first}]", config)
    config += '\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
    gateway = await gateways.start(config, name="gateway")
    syphon = await gateways.start(config, name="syphon", command=("syphon",))
    await until_it_knows(gateway, "syphon")

    alone = await keys(gateway, "envelope", "--wait", "10", code=3)
    fresh = KEYS.search(gateway.config_file.read_text())
    assert fresh is not None
    before = gateway.config_file.read_text()
    refused = await rotate(gateway, "envelope", "--use", "--wait", "0")
    after = gateway.config_file.read_text()
    syphon.config_file.write_text(KEYS.sub(fresh[0], syphon.config_file.read_text()))
    both = await keys(gateway, "envelope", "--wait", f"{PATIENCE:g}")

    told = {each["process"].split()[0]: each["keys"] for each in alone["processes"]}
    assert told["syphon"] == ["1"]
    assert [each.split()[0] for each in alone["not_reloaded"]] == ["syphon"]
    assert (refused.exit_code, after) == (75, before)
    assert "is known to have the new key: syphon on" in refused.stderr
    assert (both["changed"], both["not_reloaded"]) == (False, [])
    assert {each["process"].split()[0]: each["keys"] for each in both["processes"]}["syphon"] == [
        "1",
        "2",
    ]
    await syphon.seen("reloaded")


@pytest.mark.parametrize("kind", ["syphon", "listen", "agent"])
async def test_each_process_refuses_the_old_key_at_its_endpoint_after_a_reload(
    gateways: Gateways, kind: str
) -> None:
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(), name="secondary")
    own = f'\n[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\nprocess = "{kind}"\n'
    config = pair_config(primary.address, secondary.address) + ACCESS + own
    config += '[[agent.listeners]]\nqueues = "orders"\npython = "tests.e2e.handlers:note"'
    (file := gateways.folder / "orders.key").write_text(OLD)
    file.chmod(0o600)
    config = config.replace('"orders.key"', f'"{file}"')
    arguments = ("orders", "--python", "tests.e2e.handlers:note") if kind == "listen" else ()
    gateway = await gateways.start(config, name="gateway")
    process = await gateways.start(gateway.config, name=kind, command=(kind, *arguments))

    async def status_with(key: str) -> int:
        return await trio.to_thread.run_sync(operators_status, process.port, "orders", key)

    before = await status_with(OLD), await status_with(NEW)
    file.write_text(NEW)
    process.signal(signal.SIGHUP)
    await process.seen("reloaded")
    after = await status_with(OLD), await status_with(NEW)

    assert (before, after) == ((200, 401), (401, 200))


AGENT: Final = """
[agent]
interval = "200ms"
max_load = 1.0
[[agent.listeners]]
queues = "orders"
python = "tests.e2e.handlers:note"
min_processes = 1
"""
COMMANDS: Final = {
    "listen": ("listen", "orders", "--python", "tests.e2e.handlers:note"),
    "agent": ("agent",),
}


@attrs.define
class Load:
    """A client that sends without a pause."""

    gateway: GatewayProcess
    key: str = OLD
    sent: list[str] = attrs.field(factory=list)
    statuses: set[int] = attrs.field(factory=set)

    async def run(self) -> None:
        while True:
            body = str(len(self.sent))
            status = await send_with(
                self.gateway.address, "orders", "orders", self.key, body.encode()
            )
            self.statuses.add(status)
            self.sent.append(body)
            await trio.sleep(0.01)


async def until_noted(listener: GatewayProcess, load: Load, more: int) -> None:
    """Return when the listener has worked on that many more messages than were sent by now."""
    goal, notes = len(load.sent) + more, listener.folder / "notes"
    with trio.fail_after(PATIENCE):
        while True:  # polled: another process writes it
            if notes.exists() and len(set(notes.read_text().split())) >= goal:
                return
            await trio.sleep(0.05)


@pytest.mark.parametrize("kind", ["listen", "agent"])
async def test_a_receiver_of_the_gateway_uses_the_new_key_after_a_reload(
    gateways: Gateways, kind: str
) -> None:
    key = gateways.folder / "orders.key"
    key.write_text(OLD)
    key.chmod(0o600)
    access = ACCESS.replace("orders.key", str(key))
    gateway = await gateways.start(broker_config("orders") + access, name="gateway")
    config = gateway.config + (AGENT if kind == "agent" else "")
    listener = await gateways.start(config, name="listener", command=COMMANDS[kind])
    load = Load(gateway)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await until_noted(listener, load, 20)
        await keys(gateway, "orders")
        load.key = key.read_text().strip()
        listener.signal(signal.SIGHUP)
        # The agent passes it on to its process, whose log is in the agent's.
        await listener.until(lambda: listener.count("reloaded") == (2 if kind == "agent" else 1))
        await keys(gateway, "orders", "--finish")
        await until_noted(listener, load, 50)
        nursery.cancel_scope.cancel()
    await until_noted(listener, load, 0)

    assert load.statuses == {201}
