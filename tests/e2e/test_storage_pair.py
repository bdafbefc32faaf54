"""A pair of two Azurites: the SDKs of Storage Queue send while the primary freezes and stops."""

import hashlib
import os
import re
import signal
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.checker.operations import Acked, Delivered, Invoked, Record
from gateway.checker.verdict import Rules, Verdict, judge
from gateway.demo.audit import AuditedNamespace, audit, pending
from tests.brokers.storage_queue.azurites import client, url_of
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.sdk_producer import have_sent
from tests.e2e.storage_clients import CLIENTS, ENDPOINT, EXPECTED, MORE, producer_of, run_at
from tests.e2e.storage_pair import SYPHON_BATCH, Servers, config_of, provision, two_azurites
from tests.harness.azurite import KEY, azurite
from tests.harness.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.live]

SOME: Final = 15  # messages of each SDK
NO_ANSWER: Final = re.compile("no answer|no whole answer|OutcomeUnknown")


def spare(gateway: GatewayProcess) -> int:
    """Copies that are legal, since an attempt ended with an unknown outcome."""
    held = [line for line in gateway.log if line["event"] == "syphon_backed_off"]
    suspect = [line for line in gateway.log if line.get("after") == "suspect"]
    unknown = [line for line in held + suspect if NO_ANSWER.search(line["reason"])]
    # All producers' sends that were on their way, the trials, and a chunk of the syphon's.
    return len(unknown) * (len(CLIENTS) + 5 + SYPHON_BATCH)


def digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


async def judged(servers: Servers, sent: list[str], got: dict[str, str], extra: int) -> Verdict:
    """
    Judge the messages that the SDK got directly from the primary, and the messages that are left in
    any queue.
    """
    records: list[Record] = []
    for body in sent:
        records.append(Invoked(at=0.0, message_id=body, entity="orders", fingerprint=digest(body)))
        records.append(Acked(at=0.0, message_id=body))
    for copy, body in got.items():
        records.append(
            Delivered(at=0.0, message_id=body, entity="orders", fingerprint=digest(body), copy=copy)
        )
    async with client(servers.primary_port) as north, client(servers.secondary_port) as south:
        records += await audit([AuditedNamespace.primary(north), AuditedNamespace.secondary(south)])
    return judge(records, Rules(spare_duplicates=extra))


async def drained(port: int) -> None:
    """Return when there is no backlog any more."""
    async with client(port) as south:
        with trio.fail_after(PATIENCE):
            while True:
                if not await pending(south):
                    return
                await trio.sleep(0.2)  # polled: another process decides


async def test_the_sdk_reaches_an_azurite_through_a_gateway(
    gateways: Gateways, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    unclear = {"no such message": "PopReceiptMismatch"}  # who sends gives out ids
    # Without `messages`: the receipt of a put isn't valid there. Without `poison`: a get that is
    # given up on an empty queue may count as a delivery.
    expected = {**EXPECTED, "refusals": EXPECTED["refusals"] | unclear, **MORE["plain"]}
    del expected["messages"], expected["poison"]
    async with azurite(tmp_path / "azurite") as (_, port):
        here = f"""
[namespaces.here]
url = "storage-queue:{url_of(port)}"
key = {{ file = "{key}" }}
{ENDPOINT}"""
        gateway = await gateways.start(here)

        assert await run_at(gateway.port, "plain", *expected) == expected
    assert gateway.count("connection_crashed") == 0


async def test_no_sdk_notices_that_an_azurite_freezes_and_stops(
    gateways: Gateways, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    async with two_azurites(tmp_path) as servers:
        config = config_of(servers, key)
        await provision(gateways, config)
        gateway = await gateways.start(config, name="gateway")
        producers = [producer_of(kind, gateway) for kind in CLIENTS]

        async with trio.open_nursery() as nursery:
            for producer in producers:
                await nursery.start(producer.run)
            await have_sent(producers, SOME)
            os.kill(servers.primary.pid, signal.SIGSTOP)
            await gateway.seen("entity_state_changed", entity="orders", after="secondary")
            await have_sent(producers, SOME)
            os.kill(servers.primary.pid, signal.SIGCONT)
            await gateway.seen("entity_state_changed", entity="orders", after="primary")
            await servers.primary.stop()
            await have_sent(producers, SOME)
            await servers.primary.start()
            for producer in producers:
                producer.stop()
        await drained(servers.secondary_port)
        code = await gateway.stop()

        # The SDK itself reads the messages: texts, as they were sent, also those that came home.
        taken = (await run_at(servers.primary_port, "plain", "take-all"))["take-all"]
        got = dict(zip(taken["ids"], taken["got"], strict=True))
        sent = [body for producer in producers for body in producer.sent]
        verdict = await judged(servers, sent, got, spare(gateway))

    told = [(p.kind, len(p.sent), round(p.longest, 2), p.errors[:3]) for p in producers]
    told += [verdict.counts, verdict.undecided, verdict.findings[:10]]
    print(told)  # noqa: T201 shown where the test fails
    assert verdict.passed, told
    assert all(producer.errors == [] for producer in producers), told
    assert gateway.count("send_failed") == 0, told  # no SDK had to send again
    assert gateway.count("diverted") > 30, told
    assert gateway.count("syphoned") > 0, told
    assert gateway.count("connection_crashed") == 0
    assert code == 0
