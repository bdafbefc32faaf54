"""The legacy Python client, unmodified, in its own process and environment, over a real socket."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.frontends.auth import Authorizer
from gateway.frontends.leases import Leases
from gateway.frontends.servicebus.rest import ServiceBusRestFrontend, is_long_poll
from gateway.net.http.server import HttpServer
from gateway.net.listeners import open_listener
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.memory import MemoryBroker
from tests.e2e.installation import Installation
from tests.e2e.processes import Gateways, broker_config
from tests.harness.patience import PATIENCE

HERE = Path(__file__).parent
LEGACY_PYTHON = HERE.parents[1] / ".venv-legacy" / "bin" / "python"


def now() -> datetime:
    return datetime.now(UTC)


def crash(peer: str, error: BaseException) -> None:
    raise error


@asynccontextmanager
async def served(broker: MemoryBroker | EmbeddedBroker) -> AsyncIterator[int]:
    """A front end over the broker on loopback; yields its port."""
    leases = Leases(broker, now)
    frontend = ServiceBusRestFrontend(
        broker=broker,
        leases=leases,
        authorizer=Authorizer((), wall_clock=now, accepts_well_known_key=True),
        wall_clock=now,
    )
    server = HttpServer(
        handler=frontend.handle,
        error_body=frontend.refuse,
        wall_clock=now,
        cancels_when_gone=is_long_poll,
    )
    listener = await open_listener("127.0.0.1:0", on_crash=crash)
    async with broker, trio.open_nursery() as nursery:
        await nursery.start(leases.run)
        await nursery.start(partial(listener.serve, server.serve_connection, connections=nursery))
        yield listener.port
        nursery.cancel_scope.cancel()


async def run_legacy_client(port: int, *parts: str) -> dict[str, Any]:
    script = str(HERE / "legacy_client.py")
    command = [str(LEGACY_PYTHON), script, str(port), "SAS_KEY_VALUE", *parts]
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    assert result.returncode == 0, result.stderr.decode()
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "embedded"])
async def test_legacy_client_works_unmodified(kind: str, tmp_path: Path) -> None:
    broker = (
        MemoryBroker(now, random.Random(1))
        if kind == "memory"
        else EmbeddedBroker(tmp_path / "broker.db", now, random.Random(1))
    )
    async with served(broker) as port:
        results = await run_legacy_client(
            port, "management", "messages", "batch", "dead_letters", "refusals", "deletion"
        )

    assert results == {
        "management": {
            "created": True,
            "created again": False,
            "exists": ["AzureConflictHttpError", 409],
            "told": ["ut/queue", 3, "PT30S", False],
            "listed": ["ut/queue"],
            "missing": "not found",
            "missing to delete": ["AzureMissingResourceHttpError", 404],
        },
        "messages": {
            "body": "käse",
            "type": "text/plain",
            "properties": {
                "text": 'a "quoted" one',
                "int": 42,
                "float": 1.5,
                "yes": True,
                "no": False,
            },
            "due": "2026-01-02 03:04:05",
            "broker": {"Label": "M1", "TimeToLive": 60, "MessageId": "m-1", "DeliveryCount": 1},
            "deliveries": 2,
            "deleted twice": ["AzureMissingResourceHttpError", 404],
        },
        "batch": {
            "bodies": ["b0", "b1", "b2"],
            "properties": ["0", "1", "2"],  # this client writes all of a batch as text
            "empty": None,
            "locked": None,
        },
        "dead_letters": {"body": "poison", "reason": "MaxDeliveryCountExceeded"},
        "refusals": {
            "send to missing": ["AzureMissingResourceHttpError", 404],
            "receive from missing": ["AzureMissingResourceHttpError", 404],
            "bad name": ["AzureHttpError", 400],
            "wrong key": ["AzureHttpError", 401],
            "too large": ["AzureHttpError", 413],
        },
        "deletion": {"deleted": True, "left": []},
    }


@pytest.mark.slow
async def test_legacy_client_manages_topics_unmodified() -> None:
    async with served(MemoryBroker(now, random.Random(1))) as port:
        results = await run_legacy_client(port, "topics", "subscriptions")

    assert results == {
        "topics": {
            "created": True,
            "created again": False,
            "exists": ["AzureConflictHttpError", 409],
            "told": ["ut/topic", "PT1H", 2048],
            "listed": ["ut/topic"],
            "missing": "not found",
            "missing to delete": ["AzureMissingResourceHttpError", 404],
            "deleted": True,
            "left": [],
        },
        "subscriptions": {
            "created": True,
            "exists": ["AzureConflictHttpError", 409],
            "told": ["sub", 3, "PT30S", False],
            "listed": ["sub"],
            "missing": ["AzureMissingResourceHttpError", 404],
            "of no topic": ["AzureMissingResourceHttpError", 404],
            "rules": {
                "created": [True, True],
                "exists": ["AzureConflictHttpError", 409],
                "told": ["sql", "SqlFilter", "a > 1 AND b = '<'", "EmptyRuleAction", None],
                "listed": [
                    ["$Default", "TrueFilter"],
                    ["correlation", "CorrelationFilter"],
                    ["sql", "SqlFilter"],
                ],
                "missing": ["AzureMissingResourceHttpError", 404],
                "deleted": True,
                "deleted again": ["AzureMissingResourceHttpError", 404],
                "wrong": ["AzureHttpError", 400],
                "action": ["AzureHttpError", 400],
            },
            "deleted": True,
            "left": [],
        },
    }


NEWS = [[f"news {number}", number] for number in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["embedded:broker.db", "memory:"])
async def test_legacy_client_publishes_and_subscribes_unmodified(
    gateways: Gateways, url: str
) -> None:
    broker = await gateways.start(broker_config(url=url))

    results = await run_legacy_client(broker.port, "make_news", "topic_messages", "delete_news")

    assert results == {
        "make_news": True,
        "topic_messages": {
            "locked": ["news 2", "news 2"],
            "deliveries": 2,
            "deleted twice": ["AzureMissingResourceHttpError", 404],
            "left": [],
            "dead": [["news 3", 3]],
            "all": NEWS,
            "no topic": ["AzureMissingResourceHttpError", 404],
            "no subscription": ["AzureMissingResourceHttpError", 404],
        },
        "delete_news": [True, ["AzureMissingResourceHttpError", 404]],
    }


@pytest.mark.slow
async def test_the_legacy_clients_subscribers_get_what_was_sent_in_an_outage(
    gateways: Gateways,
) -> None:
    run = Installation(gateways=gateways, syphons=0, is_patient=True)
    await run.start()
    made = await run_legacy_client(run.gateway.port, "make_news")
    await run.kill(run.primary)

    told = await run_legacy_client(run.gateway.port, "news_in_an_outage")
    await run.primary.start()
    received = await run_legacy_client(run.gateway.port, "news_after_it")

    assert (made, told) == ({"make_news": True}, {"news_in_an_outage": [None] * 3})
    assert received == {
        "news_after_it": {"all": NEWS, "more of all": [], "many": NEWS[1:], "more of many": []}
    }


@pytest.mark.slow
async def test_the_legacy_client_notices_no_outage_of_the_primary(gateways: Gateways) -> None:
    run = Installation(gateways=gateways, syphons=0, is_patient=True)
    await run.start()
    await run.kill(run.primary)

    told = await run_legacy_client(run.gateway.port, "send_in_an_outage")
    await run.primary.start()
    received = await run_legacy_client(run.gateway.port, "receive_after_it")

    assert told == {"send_in_an_outage": [None] * 5}
    assert received == {
        "receive_after_it": [[f"order {number}", number] for number in range(5)],
    }
