"""Two pairs that share a label, a key and a secondary, with real processes."""

import json
from typing import Any

import pytest

from tests.e2e.commands import ADMIN, pairgate, pairgate_provision, with_fixed_port
from tests.e2e.processes import Gateways, broker_config, pair_config
from tests.e2e.rest import send, take
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

MESSAGES = 20
WRONG = 2


def colliding(primary: str, secondary: str, **changes: Any) -> str:
    """A pair as `bus.eu.example` and `bus.us.example` would give each other's label to."""
    options = {"label": "bus", "backlog_queues": 1, "failover_interval": "0s", **changes}
    return pair_config(primary, secondary, **options)


async def arrived(address: str, wanted: int) -> list[bytes]:
    """The wanted messages, which may be late on a busy machine, and what is there besides."""
    found = []
    while body := await take(address, "orders", wait=PATIENCE if len(found) < wanted else 1):
        found.append(body)
    return sorted(found)


async def test_twenty_of_twenty_messages_stay_for_the_syphon_of_their_own_pair(
    gateways: Gateways,
) -> None:
    eu = await gateways.start(broker_config("orders"), name="eu")
    us = await gateways.start(broker_config("orders"), name="us")
    secondary = await gateways.start(broker_config("bus/x-servicebus-transfer/0"), name="west")
    to_eu = await gateways.start(
        colliding(eu.address, secondary.address, enable_syphon=False), name="to-eu"
    )
    await eu.kill()
    for number in range(MESSAGES):
        assert await send(to_eu.address, "orders", b"%02d" % number) == (201, "backlog")

    to_us = await gateways.start(colliding(us.address, secondary.address) + ADMIN, name="to-us")
    await to_us.until(
        lambda: (
            sum(line["messages"] for line in to_us.log if line["event"] == "left_untouched")
            >= MESSAGES
        )
    )
    reasons = [line["reason"] for line in to_us.log if line["event"] == "left_untouched"]
    await with_fixed_port(to_us)
    _, output, _ = await pairgate(to_us, "status", "--json")
    await to_us.stop()
    await eu.start()
    syphon = await gateways.start(
        colliding(eu.address, secondary.address), name="syphon", command=("syphon",)
    )
    await syphon.until(
        lambda: (
            sum(line["messages"] for line in syphon.log if line["event"] == "syphoned") >= MESSAGES
        ),
        patience=100.0,
    )

    problems = json.loads(output)["problems"]
    assert any("another primary" in problem for problem in problems), problems
    assert all("another primary" in reason and "--adopt" in reason for reason in reasons)
    assert await arrived(us.address, 0) == []
    assert await arrived(eu.address, MESSAGES) == [b"%02d" % number for number in range(MESSAGES)]


async def test_a_label_that_is_another_pairs_is_refused_until_it_is_adopted(
    gateways: Gateways,
) -> None:
    eu = await gateways.start(broker_config("orders"), name="eu")
    us = await gateways.start(broker_config("orders"), name="us")
    secondary = await gateways.start(broker_config(), name="west")
    await pairgate_provision(gateways, colliding(eu.address, secondary.address))

    other = gateways.prepare(colliding(us.address, secondary.address), name="to-us")
    await other.start(wait=False)
    served = await other.wait()
    checked, output, _ = await pairgate(other, "check", "--json")
    provisioned, _, _ = await pairgate(other, "provision")
    bad = [each["text"] for each in json.loads(output)["findings"] if each["grade"] == "bad"]
    [text] = bad
    fingerprint = text.rpartition("--adopt ")[2].rstrip("`")
    adopted, _, _ = await pairgate(other, "provision", "--adopt", fingerprint)
    again, _, _ = await pairgate(other, "check", "--json")
    former = gateways.prepare(colliding(eu.address, secondary.address), name="to-eu")
    await former.start(wait=False)

    assert (served, checked, provisioned) == (WRONG, 1, WRONG)
    assert "another pairing.label" in text
    assert (adopted, again) == (0, 0)
    assert await former.wait() == WRONG


@pytest.mark.parametrize("twin", ["localhost", "amqp"])
async def test_one_namespace_under_two_names_is_no_pair(gateways: Gateways, twin: str) -> None:
    config = broker_config("orders", "bus/x-servicebus-transfer/0")
    config += '\n[[endpoints]]\nprotocol = "service-bus"\nbind = "127.0.0.1:0"\n'
    broker = await gateways.start(config, name="one")
    text = colliding(broker.address, broker.address)
    if twin == "localhost":
        text = text.replace("@127.0.0.1", "@localhost", 1)
    else:
        host = f"Endpoint=sb://127.0.0.1:{broker.ports[1]}/"
        text = text.replace(
            f"servicebus+http://RootManageSharedAccessKey@{broker.address}",
            f"servicebus:{host};SharedAccessKeyName=RootManageSharedAccessKey;"
            "UseDevelopmentEmulator=true",
            1,
        )
    pair = gateways.prepare(text, name="pair")
    await pair.start(wait=False)
    served = await pair.wait()
    checked, output, errors = await pairgate(pair, "check", "--json")

    assert served == WRONG
    assert checked in {1, WRONG}
    assert "one and the same" in output or "is the same store" in errors + output
