"""The image's configuration for development, in place of the official emulator."""

import json
import re
import urllib.request

import trio

from tests.e2e.azure_python import AZURE_PYTHON, HERE
from tests.e2e.processes import ROOT, GatewayProcess, Gateways
from tests.pages import blocks
from tests.security.gateway import ask, head, status, token

FOLDER = ROOT / "conf" / "container"
TEXT = (FOLDER / "development.toml").read_text()
PROTOCOLS = re.findall('protocol = "(.+)"', TEXT)
# In the form of the emulator's file, of this machine's own queues and rules.
ENTITIES = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "queue.1", "Properties": {"LockDuration": "PT1M"}}],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Rules": [
                                    {
                                        "Name": "labelled",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Label": "subject1"},
                                        },
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


async def start(gateways: Gateways, entities: str) -> GatewayProcess:
    """The gateway of the image's file, at free ports, with its files in its own folder."""
    text = re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:0", TEXT)
    text = text.replace("/var/lib/pairgate/", "").replace("/ServiceBus_Emulator/ConfigFiles/", "")
    gateway = gateways.prepare(text)
    gateway.folder.mkdir(parents=True)
    (gateway.folder / "Config.json").write_text(entities)
    await gateway.start()
    return gateway


def listed_rules(port: int) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/topic.1/Subscriptions/subscription.1/Rules",
        headers={"Host": f"servicebus:{port}", "Authorization": token(port)},
    )
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


async def test_the_emulators_samples_run_unchanged_from_another_container(
    gateways: Gateways,
) -> None:
    gateway = await start(gateways, json.dumps(ENTITIES))
    port = gateway.ports[PROTOCOLS.index("service-bus")]
    management = gateway.ports[PROTOCOLS.index("service-bus-http")]

    done = await trio.run_process(
        [str(AZURE_PYTHON), str(HERE / "emulator_client.py"), str(port)], capture_stdout=True
    )
    rules = await trio.to_thread.run_sync(listed_rules, management)

    assert json.loads(done.stdout) == ["Hello, Azure Service Bus!"] * 2
    assert b"<Label>subject1</Label>" in rules
    [warning] = [line for line in gateway.log if "development" in str(line)]
    assert "accepts the emulators' well-known key" in str(warning)


async def test_the_images_own_file_of_entities_makes_none_and_the_probe_is_answered(
    gateways: Gateways,
) -> None:
    gateway = await start(gateways, (FOLDER / "Config.json").read_text())

    for protocol in ("service-bus", "service-bus-http"):
        port = gateway.ports[PROTOCOLS.index(protocol)]
        answer = await ask(port, head("GET", "/health", ("Host", f"servicebus:{port}")))
        listed = await ask(port, head("GET", "/orders", ("Host", f"servicebus:{port}")))
        assert (status(answer), status(listed)) == (200, 401)


def test_the_page_publishes_the_ports_of_the_file() -> None:
    [text] = [
        each
        for each in blocks("docs/how-to/run/run-in-containers.md", "yaml")
        if "development.toml" in each
    ]
    bound = re.findall(r"0\.0\.0\.0:(\d+)", TEXT)

    assert re.findall(r"127\.0\.0\.1:\d+:(\d+)", text) == bound
