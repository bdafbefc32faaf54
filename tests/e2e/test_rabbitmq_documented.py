"""
The pair on RabbitMQ as docs/how-to/pair/rabbitmq.md sets it up, word for word: healthy by its
status, its metrics and the broker's log. `make test-documented` watches it for five minutes.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import pytest
import trio

from gateway.demo.ports import free_port
from tests.e2e.commands import ADMIN, admin_of, get, status_at, with_fixed_port
from tests.e2e.control import order, under_load, until_it_holds_back
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rabbitmq_nodes import EXAMPLES, VHOST, ExampleNode, ExampleNodes
from tests.e2e.rabbitmq_pair import ORDERS, SECRET, known_secret, provision
from tests.e2e.rest import send
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import MANAGEMENT, LastingNode, management_at

pytestmark = [pytest.mark.live, pytest.mark.slow]

EXAMPLE: Final = "rabbitmq-pair.toml"
DEFINITIONS: Final = "rabbitmq-definitions.json"
URL: Final = re.compile(r'url = "rabbitmqs://gateway@rabbit-(north|south)[^"]*"')
# Seconds for which the pair is watched. From a minute on the intervals are those of the file.
WATCHED: Final = int(os.environ.get("PAIRGATE_WATCHED", "5"))
OFTEN: Final = "" if WATCHED >= 60 else '\n[pairing.syphon]\nrescan = "1s"\nstall_after = "1s"\n'
FAILS: Final = re.compile(r"pairgate_namespace_ability\{.*\} 0(\.0)?")
# The time and the level of a line of the broker's log.
ERROR: Final = re.compile(r"(\S+ \S+) \[error\]")
FOLLOWED: Final = 3.0  # seconds: each process reads the orders every two
TROUBLE: Final = ("error", "critical", "warning")


@pytest.fixture(scope="module")
def south(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ExampleNode, str]]:
    """A node with the management plugin, without its collector of metrics; the plugin's URL."""
    port = free_port()
    settings = (*management_at(port), "management_agent.disable_metrics_collector = true")
    node = LastingNode(
        folder=tmp_path_factory.mktemp("south"),
        name="documented",
        plugins=(MANAGEMENT,),
        settings=settings,
    )
    yield ExampleNode(node), f"http://127.0.0.1:{port}"
    node.end()


@attrs.frozen
class BrokerLog:
    """
    The log of a node from now on. The broker writes its file late, so the times of the lines
    count: those of `provision`, which looks for queues that aren't there yet, may still come.
    """

    node: ExampleNode
    _begin: datetime = attrs.field(factory=lambda: datetime.now(UTC))

    @property
    def errors(self) -> list[str]:
        files = sorted((self.node.node.folder / "log").glob("*.log"))
        lines = [line for each in files for line in each.read_text(errors="replace").splitlines()]
        return [
            line
            for line in lines
            if (found := ERROR.match(line)) and datetime.fromisoformat(found[1]) > self._begin
        ]


def documented(ports: Mapping[str, int], management: str, tables: str) -> str:
    """The example, with the addresses and the secrets of these nodes, and endpoints at any port."""

    def url(match: re.Match[str]) -> str:
        plugin = f'\nmanagement = "{management}"' if management and match[1] == "south" else ""
        return f'url = "rabbitmq://gateway@127.0.0.1:{ports[match[1]]}/{VHOST}"{plugin}'

    text = SECRET.sub(known_secret, URL.sub(url, (EXAMPLES / EXAMPLE).read_text()))
    text = text.replace("[pairing] ", '[pairing]\nlabel = "rabbit-north"  ')
    return text.partition("[[endpoints]]")[0] + tables


async def after(seconds: float, processes: list[GatewayProcess]) -> list[GatewayProcess]:
    await trio.sleep(seconds)
    return processes


async def look(process: GatewayProcess) -> tuple[dict[str, Any], list[str]]:
    """Status and metrics of a process now."""
    status = await status_at(process.ports[-1])
    _, metrics = await trio.to_thread.run_sync(get, process.ports[-1], "/metrics")
    return status, metrics.decode().splitlines()


@pytest.mark.timeout(300 + WATCHED)
@pytest.mark.parametrize(("managed", "own_syphon"), [(False, True), (True, False)])
async def test_the_documented_pair_on_rabbitmq_is_healthy(
    rabbits: ExampleNodes,
    south: tuple[ExampleNode, str],
    gateways: Gateways,
    managed: bool,
    own_syphon: bool,
) -> None:
    nodes = {"north": rabbits.north, "south": south[0]}
    async with trio.open_nursery() as nursery:
        for node in nodes.values():
            nursery.start_soon(node.prepare, DEFINITIONS)
    if managed:
        await nodes["south"].control("set_user_tags", "gateway", "management")
    ports = {name: node.node.port for name, node in nodes.items()}
    config = documented(ports, south[1] if managed else "", "")
    await provision(gateways, config)
    logs = [BrokerLog(node) for node in nodes.values()]

    endpoints = '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n'
    serving = (
        config if own_syphon else config.replace("enable_syphon = true", "enable_syphon = false")
    )
    gateway = await gateways.start(serving + endpoints + ADMIN + OFTEN, name="gateway")
    watched = [gateway]
    if not own_syphon:
        syphon = await gateways.start(
            config + admin_of("syphon") + OFTEN, name="syphon", command=("syphon",)
        )
        watched.append(syphon)
    for process in watched:
        await with_fixed_port(process)
    assert await send(gateway.address, "orders", b"x") == (201, "primary")
    seen = [await look(process) for _ in range(WATCHED) for process in await after(1.0, watched)]

    assert [told["problems"] for told, _ in seen if not told["good"]] == []
    assert not [line for _, metrics in seen for line in metrics if FAILS.fullmatch(line)]
    depths = {
        told["pair"]["backlog"]["pending"] for told, _ in seen[len(watched) - 1 :: len(watched)]
    }
    assert depths == {0}  # where the syphon is
    assert not [line for each in logs for line in each.errors]
    troubles = [line for each in watched for line in each.log if line["level"] in TROUBLE]
    assert {line["event"] for line in troubles} <= {"doubtful"}, troubles


async def test_all_processes_follow_one_order_and_tell_of_each_other(
    rabbits: ExampleNodes, gateways: Gateways
) -> None:
    nodes = {"north": rabbits.north, "south": rabbits.south}
    for node in nodes.values():
        await node.prepare(DEFINITIONS)
    config = documented({name: node.node.port for name, node in nodes.items()}, "", "")
    await provision(gateways, config)
    logs = [BrokerLog(node) for node in nodes.values()]
    serving = config.replace("enable_syphon = true", "enable_syphon = false")
    endpoints = '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n'
    gateway = await gateways.start(serving + endpoints + ADMIN, name="gateway")
    sidecar = await gateways.start(
        serving.replace("//gateway@", "//producer@") + endpoints + ADMIN, name="sidecar"
    )
    syphon = await gateways.start(config + admin_of("syphon"), name="syphon", command=("syphon",))
    for process in (gateway, sidecar, syphon):
        await with_fixed_port(process)

    async with rabbits.north.client() as north:

        async def on_primary() -> int:
            return (await north.inspect(ORDERS)).active or 0

        async with under_load(gateway) as load:
            await load.more("primary")
            over = await order(gateway, "failover", targets=["*"], reason="maintenance")
            await until_it_holds_back(syphon)
            before = await on_primary()
            await load.more("backlog", 30)
            await syphon.kill()
            await syphon.start()
            await load.more("backlog", 30)
        told = await until_they_agree(gateway, sidecar, syphon)
        await gateway.kill()
        await gateway.start()
        await trio.sleep(FOLLOWED)
        during = await on_primary()
        await order(gateway, "failback", targets=["*"])
        with trio.fail_after(PATIENCE):
            while await on_primary() < len(load.accepted):  # noqa: ASYNC110 no event reports it
                await trio.sleep(0.2)

    assert (over["after"]["not_reached"], before) == ([], during)
    for status in told:  # the killed one counts as alive for a while
        syphons = status["pair"]["backlog"]["syphons"]
        assert syphons["alive"][0]["process"] == "syphon"
        assert syphons["consumers"] == 0
    # A broker may also report how it ends the channels of a process that was killed.
    assert not [line for each in logs for line in each.errors if " caused a " in line]


async def until_they_agree(*processes: GatewayProcess) -> list[Any]:
    """Return what they tell once all hold back, and tell the same problems."""
    with trio.fail_after(PATIENCE):
        while True:
            told = [(await look(each))[0] for each in processes]
            states = {status["progress"]["state"] for status in told}
            problems = {json.dumps(status["problems"]) for status in told}
            if states == {"held-back"} and len(problems) == 1:
                return told
            await trio.sleep(0.2)
