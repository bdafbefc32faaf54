"""The current SDKs over AMQP, unmodified, each in its own process: every feature, and an outage."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from gateway.net.certs import write_certificates
from gateway.wire.servicebus.sas import sign_sas
from tests.e2e.amqp_clients import ENVIRONMENT, KEY, NAME, command, producer_of
from tests.e2e.processes import GatewayProcess, Gateways, broker_config, pair_config
from tests.e2e.sdk_producer import have_sent
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

TLS = 'tls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'
CLIENTS = ("plain", "asyncio", "node")

SOME = 20  # messages
GRACE = 'limits.grace = "1h"\n'  # a drain that waits for its end is missing after `PATIENCE`
# An attempt on the primary, and one on the backlog, on busy cores. A send that waits for the end of
# its time lasts as long as `send_timeout`, and an SDK gives it up after a minute.
SEND = "3m"
LONGEST_STALL = 50.0  # seconds

EXPECTED = {
    "sending": {
        "bodies": ["single", "list 0", "list 1", "batch 0", "batch 1", "batch 2"],
        "large": 700_000,
        "left": [],
    },
    "properties": {
        "body": "rich",
        "properties": {"text": "grün", "number": 7, "real": 2.5, "truth": True},
        "id": "the id",
        "subject": "the subject",
        "content_type": "text/plain",
        "correlation": "the correlation",
        "reply_to": "the answer",
        "to": "the target",
        "key": "key",
        "ttl": 3600,
        "count": 0,
        "numbered": True,
        "recent": True,
    },
    "scheduling": {
        "numbers": 2,
        "before": ["by property", "later", "never"],
        "early": 0,
        "arrived": ["by property", "later"],
        "cancelled_twice": "MessageNotFound",
    },
    "settling": {
        "abandoned": ["abandon", 1],
        "deferred": ["defer"],
        "deferred_twice": "MessageNotFound",
        "dead": ["dead-letter", "the reason", "the description"],
        "left": [],
    },
    "deleting": {"bodies": ["0", "1", "2"], "left": []},
    "peeking": {"first": ["0", "1"], "rest": ["2", "3"]},
    "renewing": {"later": True, "kept": None, "left": []},
    "losing": {"late": "MessageLockLost", "count": 1},
    "sessions": {
        "without": "ServiceBus",
        "state": ["the state", "the state", True],
        "renewed": True,
        "locked": "SessionCannotBeLocked",
        "bodies": ["b0", "b1"],
        "next": ["a", ["a0", "a1"]],
    },
    "losing_sessions": {"late": "SessionLockLost", "again": "late"},
    "topics": {"all": ["red", "blue"], "red": ["red"], "blue": ["blue"]},
    "refusals": {
        "sender": "MessagingEntityNotFound",
        "receiver": "MessagingEntityNotFound",
        "subscription": "MessagingEntityNotFound",
        "disabled": "MessagingEntityDisabled",
        "wrong_key": "ServiceBusAuthentication",
        "too_large": "MessageSizeExceeded",
    },
}
# Node's SDK lists no sessions, and waits a minute for the next one.
MORE_IN_PYTHON = {"listed": ["a", "b"], "none": "OperationTimeout", "no_session": "ServiceBus"}
# Made over HTTP by Python's, which manages rules in no other way.
ACTIONS = [
    ["new", {"n": 42, "RuleName": "paint"}, "chosen"],
    ["old", {"n": 1, "size": 5}, None],
]
# Python's manages rules over HTTP only.
RULES_IN_NODE = {
    "first": [["$Default", "1=1"]],
    "then": ["correlation", "sql"],
    "twice": "MessagingEntityAlreadyExists",
    "missing": "MessagingEntityNotFound",
    "arrived": [["big", None, 11], ["urgent", "done", 2]],
    "left": [],
}
PLACED = ["shop/messages~placed", "s"]
ADMINISTERED_IN_NODE = {
    "made": PLACED,
    "got": PLACED,
    "updated": PLACED,
    "counted": PLACED,
    "listed": [PLACED],
    "ruled": ["r", "r"],
    "rules": ["$Default", "r"],
    "exist": [True, False, True, False],
}
PREPARED = [
    *("deleting", "disabled", "losing", "losing-sessions", "peeking", "properties", "renewing"),
    *("scheduling", "sending", "sessions", "settling"),
]


def served(config: str) -> str:
    """The configuration with one port for everything, which takes TLS too."""
    return config.replace('"service-bus-http"', '"service-bus"') + TLS


async def start(gateways: Gateways, config: str, **named: Any) -> GatewayProcess:
    process = gateways.prepare(served(config), **named)
    process.folder.mkdir(parents=True, exist_ok=True)
    write_certificates(process.folder / "tls", now=datetime.now(UTC))
    await process.start()
    return process


async def run(kind: str, process: GatewayProcess, *parts: str, **how: str) -> dict[str, Any]:
    """The results of these parts; `how` is passed to `command`."""
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            command(kind, process, *parts, **how),
            env=ENVIRONMENT | {"NODE_EXTRA_CA_CERTS": str(process.folder / "tls/ca.pem")},
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr.decode()
    print(result.stderr.decode())  # noqa: T201 shown where the test fails
    found: dict[str, Any] = json.loads(result.stdout)
    return found


async def prepare(gateways: Gateways) -> GatewayProcess:
    broker = await start(gateways, broker_config())
    assert await run("plain", broker, "entities") == {"entities": PREPARED}
    return broker


@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_sdk_finds_everything_at_one_port(gateways: Gateways, kind: str) -> None:
    expected: dict[str, Any] = dict(EXPECTED)
    if kind == "node":
        expected["rules"] = RULES_IN_NODE
        expected["administering"] = ADMINISTERED_IN_NODE
    else:
        expected["sessions"] = EXPECTED["sessions"] | MORE_IN_PYTHON
        expected["actions"] = ACTIONS
    broker = await prepare(gateways)

    found = await run(kind, broker, *expected)

    for part, result in expected.items():
        assert found[part] == result, part
    assert broker.count("connection_crashed") == 0


@pytest.mark.parametrize("secure", ["Amqp", "AmqpOverWebsocket"])
async def test_tls_and_websocket_are_at_the_same_port(gateways: Gateways, secure: str) -> None:
    parts = ("sending", "properties", "settling")
    broker = await prepare(gateways)

    for kind in CLIENTS:
        found = await run(kind, broker, *parts, secure=secure)
        assert found == {part: EXPECTED[part] for part in parts}, kind
    assert broker.count("connection_crashed") == 0


async def test_a_connection_string_may_have_a_signature(gateways: Gateways) -> None:
    """Node's SDK then begins without SASL."""
    expires = int(datetime.now(UTC).timestamp()) + 3600
    signature = sign_sas("sb://localhost/", NAME, KEY, expires)
    parts = ("sending", "settling")
    broker = await prepare(gateways)

    for kind in CLIENTS:
        found = await run(kind, broker, *parts, credentials=f"SharedAccessSignature={signature};")
        assert found == {part: EXPECTED[part] for part in parts}, kind
    assert broker.count("connection_crashed") == 0


async def test_clients_that_try_again_survive_a_restart(gateways: Gateways) -> None:
    broker = await start(gateways, GRACE + broker_config("orders"))
    # Node's SDK gives up if a connection is refused, whatever its retry options.
    producers = [producer_of(kind, broker, retries=5) for kind in ("plain", "asyncio")]

    async with trio.open_nursery() as nursery:
        for producer in producers:
            await nursery.start(producer.run)
        await have_sent(producers, SOME)
        with trio.fail_after(PATIENCE):
            code = await broker.stop()
        await broker.start()
        await have_sent(producers, SOME)
        for producer in producers:
            producer.stop()

    received = await receive_all(broker, {name for p in producers for name in p.sent})

    assert code == 0
    assert received
    assert broker.count("connection_crashed") == 0


async def test_no_producer_notices_that_the_primary_was_killed(gateways: Gateways) -> None:
    backlogs = [f"east/x-servicebus-transfer/{n}" for n in range(2)]
    primary = await gateways.start(broker_config("orders"), name="primary")
    secondary = await gateways.start(broker_config(*backlogs), name="secondary")
    pair = pair_config(primary.address, secondary.address, backlog_queues=2, send_timeout=SEND)
    gateway = await start(gateways, pair, name="gateway")
    producers = [producer_of(kind, gateway) for kind in CLIENTS]

    async with trio.open_nursery() as nursery:
        for producer in producers:
            await nursery.start(producer.run)
        await have_sent(producers, SOME)
        await primary.kill()
        await have_sent(producers, SOME)
        await primary.start()
        await gateway.seen("entity_state_changed", entity="orders", after="primary")
        await have_sent(producers, SOME)
        for producer in producers:
            producer.stop()
    received = await receive_all(gateway, {name for p in producers for name in p.sent})

    told = [(p.kind, len(p.sent), round(p.longest, 2)) for p in producers]
    print(told)  # noqa: T201 shown where the test fails
    assert received
    assert max(producer.longest for producer in producers) < LONGEST_STALL
    assert gateway.count("send_failed") == 0
    assert gateway.count("connection_crashed") == 0


async def receive_all(gateway: GatewayProcess, expected: set[str]) -> bool:
    """True when all of them have come, by themselves or out of the backlog."""
    missing = set(expected)
    with trio.move_on_after(PATIENCE):
        while missing:
            missing -= set((await run("plain", gateway, "consuming"))["consuming"])
    return not missing
