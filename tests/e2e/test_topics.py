"""Topics with real processes: made from a file, received over REST and TLS, there after a kill."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio

from gateway.brokers.servicebus.broker import ServiceBusRestOptions, open_namespace
from gateway.domain.entity import EntityPath
from gateway.domain.message import Complete, Message
from gateway.domain.topics.filters import CorrelationFilter, Rule, SqlFilter
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from gateway.net.certs import write_certificates
from gateway.net.tls import ClientTlsOptions
from tests.command_line import PATIENTLY
from tests.e2e.commands import pairgate, with_fixed_port
from tests.e2e.installation import client
from tests.e2e.processes import GatewayProcess, Gateways, broker_config
from tests.e2e.rest import KEY, KEY_NAME, request, send, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

TOPIC = EntityPath("topic.1")
TLS = '\ntls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'
ENTITIES = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "queue.1", "Properties": {"MaxDeliveryCount": 3}}],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H"},
                        "Subscriptions": [
                            {"Name": "all", "Properties": {"MaxDeliveryCount": 1}},
                            {
                                "Name": "some",
                                "Properties": {},
                                "Rules": [
                                    {
                                        "Name": "sql",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "n > 1"},
                                        },
                                    },
                                    {
                                        "Name": "correlation",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Label": "red"},
                                        },
                                    },
                                ],
                            },
                            {"Name": "on", "Properties": {"ForwardTo": "queue.1"}},
                            {"Name": "lost", "Properties": {"ForwardTo": "nowhere"}},
                        ],
                    }
                ],
            }
        ]
    }
}


def prepare(gateways: Gateways) -> GatewayProcess:
    config = broker_config().replace("queues = []", 'entities = "Config.json"')
    broker = gateways.prepare(config)
    broker.folder.mkdir()
    (broker.folder / "Config.json").write_text(json.dumps(ENTITIES))
    return broker


async def rules_of(process: GatewayProcess, subscription: str) -> list[str]:
    async with client(process) as broker:
        return [rule.name for rule in await broker.list_rules(TOPIC, subscription)]


async def drained(address: str, name: str, messages: int) -> Sequence[bytes | None]:
    """Take so many messages, which may come late on a busy machine, and see that none is left."""
    path = f"topic.1/{name}"
    found = [await take(address, path) for _ in range(messages)]
    assert await take(address, path, wait=1) is None
    return found


async def test_the_emulators_file_makes_topics_with_subscriptions_and_rules(
    gateways: Gateways,
) -> None:
    broker = prepare(gateways)
    await broker.start()
    async with client(broker) as there:
        for number, label in enumerate(("red", "blue", "blue")):
            message = Message(body=b"%d" % number, subject=label, properties={"n": number})
            await there.send(TOPIC, [message])

    assert await rules_of(broker, "some") == ["correlation", "sql"]
    assert await drained(broker.address, "subscriptions/some", 2) == [b"0", b"2"]
    assert await take(broker.address, "queue.1") == b"0"
    lost = "subscriptions/lost/$Transfer/$DeadLetterQueue"
    assert await drained(broker.address, lost, 3) == [b"0", b"1", b"2"]
    head = "/topic.1/subscriptions/all/messages/head?timeout=20"
    _, headers, _ = await request(broker.address, "POST", head)
    await request(
        broker.address, "PUT", headers["location"].removeprefix("http://" + broker.address)
    )
    assert await drained(broker.address, "Subscriptions/all/$deadletterqueue", 1) == [b"0"]


async def test_a_killed_broker_has_its_subscriptions_and_rules(gateways: Gateways) -> None:
    broker = prepare(gateways)
    await broker.start()
    async with client(broker) as there:
        await there.create_subscription(TOPIC, "late", SubscriptionProperties())
        await there.create_rule(TOPIC, "late", Rule(name="r", filter=CorrelationFilter(to="x")))
        await there.delete_rule(TOPIC, "late", "$Default")
        await there.update_rule(TOPIC, "some", Rule(name="sql", filter=SqlFilter(expression="n>5")))
        await there.delete_subscription(TOPIC, "lost")
        await there.send(TOPIC, [Message(body=b"kept", properties={"n": 2}, to="x")])
    await broker.kill()
    await broker.start()

    async with client(broker) as there:
        names = [info.name for info in await there.list_subscriptions(TOPIC)]
        await there.send(TOPIC, [Message(body=b"new", properties={"n": 6})])
        updated = await there.inspect_rule(TOPIC, "some", "sql")
    assert names == ["all", "late", "lost", "on", "some"]  # the file wants `lost`
    assert await rules_of(broker, "late") == ["r"]
    assert updated.filter == SqlFilter(expression="n>5")
    assert await drained(broker.address, "subscriptions/all", 2) == [b"kept", b"new"]
    assert await drained(broker.address, "subscriptions/late", 1) == [b"kept"]
    assert await drained(broker.address, "subscriptions/some", 1) == [b"new"]


async def test_a_receive_waits_at_a_subscription_until_a_message_comes(gateways: Gateways) -> None:
    broker = prepare(gateways)
    await broker.start()
    found = []

    async def wait() -> None:
        found.append(await take(broker.address, "topic.1/subscriptions/all"))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1.0)
            await send(broker.address, "topic.1", b"hello")

    assert found == [b"hello"]


async def test_subscribers_come_over_tls(gateways: Gateways) -> None:
    broker = gateways.prepare(broker_config() + TLS)
    write_certificates(broker.folder / "tls", now=datetime.now(UTC))
    await broker.start()
    options = ServiceBusRestOptions(
        key=KEY, tls=ClientTlsOptions(ca=broker.folder / "tls" / "ca.pem")
    )
    there = open_namespace(
        "servicebus+https",
        f"//{KEY_NAME}@localhost:{broker.port}",
        options,
        lambda: datetime.now(UTC),
    )
    async with there:
        await there.create_topic(TOPIC, TopicProperties())
        info = await there.create_subscription(TOPIC, "s", SubscriptionProperties())
        await there.send(TOPIC, [Message(body=b"hello")])
        async with there.open_receiver(info.path) as receiver:
            [delivery] = await receiver.receive(1)
            await receiver.settle(delivery, Complete())

        assert delivery.message.body == b"hello"
        assert (await there.inspect_subscription(TOPIC, "s")).active == 0


async def test_the_other_commands_know_topics(gateways: Gateways, tmp_path: Path) -> None:
    broker = prepare(gateways)
    await broker.start()
    await with_fixed_port(broker)
    remote = gateways.prepare(
        broker_config(url=f"servicebus+http://{KEY_NAME}@{broker.address}").replace(
            "queues = []", 'entities = "Config.json"'
        )
    )
    remote.folder.mkdir()
    remote.config_file.write_text(remote.config)
    only_topics = json.loads(json.dumps(ENTITIES))
    (namespace,) = only_topics["UserConfig"]["Namespaces"]
    del namespace["Queues"]
    namespace["Topics"][0]["Name"] = "topic.2"
    (remote.folder / "Config.json").write_text(json.dumps(only_topics))

    before = await pairgate(remote, "check")
    made = await pairgate(remote, "provision", "--json")
    after = await pairgate(remote, "check")
    sent = await pairgate(broker, "send", "topic.1", "hello")
    peeked = await pairgate(broker, "peek", "topic.1/subscriptions/all")
    received = await pairgate(broker, "receive", "topic.1/subscriptions/all", *PATIENTLY)

    assert "topic topic.2 is missing; `pairgate provision` creates it" in before[1]
    (namespace_made,) = json.loads(made[1])
    assert namespace_made["queues"][:2] == ["topic.2", "topic.2/Subscriptions/all"]
    assert (after[0], "missing" in after[1]) == (0, False)
    assert [code for code, _, _ in (sent, peeked, received)] == [0, 0, 0]
    assert "hello" in peeked[1]
    assert "hello" in received[1]
