"""The current management client, unmodified, in its own process and environment, over TLS."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.net.certs import write_certificates
from tests.e2e.azure_python import AZURE_PYTHON, HERE
from tests.e2e.processes import Gateways, broker_config
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

TLS = '\ntls = { certificate = "tls/server.pem", key = "tls/server.key" }\n'

NOT_FOUND = ["ResourceNotFoundError", 404]
EMPTY = ["ResourceNotFoundError", None]  # 200 with an empty feed
EXISTS = ["ResourceExistsError", 409]
INVALID = ["HttpResponseError", 400]


async def run_azure_client(port: int, ca: Path, *parts: str) -> dict[str, Any]:
    command = [str(AZURE_PYTHON), str(HERE / "azure_client.py"), str(port), str(ca), *parts]
    with trio.fail_after(PATIENCE):
        result = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
    assert result.returncode == 0, result.stderr.decode()
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.mark.parametrize("url", ["embedded:broker.db", "memory:"])
async def test_the_current_client_works_unmodified(gateways: Gateways, url: str) -> None:
    broker = gateways.prepare(broker_config(url=url) + TLS)
    write_certificates(broker.folder / "tls", now=datetime.now(UTC))
    await broker.start()

    results = await run_azure_client(broker.port, broker.folder / "tls/ca.pem", *EXPECTED)

    assert results == EXPECTED


EXPECTED: dict[str, dict[str, Any]] = {
    "namespace": {
        "name": "pairgate",
        "messaging_sku": "Premium",
        "messaging_units": 1,
        "alias": "",
    },
    "pages": {"all": True, "from 50": True},
    "refusals": {
        "exists": EXISTS,
        "missing": EMPTY,
        "missing counts": EMPTY,
        "missing to delete": NOT_FOUND,
        "empty name": INVALID,
        "bad name": INVALID,
        "long lock": INVALID,
        "long window": INVALID,
        "deliveries": INVALID,
        "wrong key": ["ClientAuthenticationError", 401],
        "elsewhere": INVALID,
    },
    "queues": {
        "told is made": [],
        "made": {
            "name": "eu/rich",
            "lock_duration": "0:00:13",
            "max_delivery_count": 14,
            "max_size_in_megabytes": 3072,
            "default_message_time_to_live": "0:11:00",
            "requires_session": True,
            "requires_duplicate_detection": True,
            "duplicate_detection_history_time_window": "0:12:00",
            "dead_lettering_on_message_expiration": True,
            "auto_delete_on_idle": "0:10:00",
            "user_metadata": "<mine>",
            "status": "Active",
        },
        "dead letters": "sb://localhost:PORT/eu/plain",
        "counts": {
            "name": "eu/rich",
            "total_message_count": 0,
            "active_message_count": 0,
            "dead_letter_message_count": 0,
            "scheduled_message_count": 0,
            "size_in_bytes": 0,
            "transfer_message_count": 0,
            "transfer_dead_letter_message_count": 0,
        },
        "dates": True,
        "listed": ["eu/plain", "eu/rich"],
        "listed counts": ["eu/plain", "eu/rich"],
        "deleted": [None, None],
        "left": [],
    },
    "updates": {
        "told": {
            "max_delivery_count": 7,
            "lock_duration": "0:02:00",
            "user_metadata": "by keyword",
        },
        "immutable": INVALID,
        "missing": NOT_FOUND,
        "too long": INVALID,
        "after errors": False,
        "deleted": None,
    },
    "etags": {"fresh": None, "stale": ["ResourceModifiedError", 412], "fresh again": None},
    "topics": {
        "told": {
            "name": "eu/topic",
            "default_message_time_to_live": "0:20:00",
            "max_size_in_megabytes": 2048,
            "requires_duplicate_detection": True,
            "duplicate_detection_history_time_window": "0:12:00",
            "auto_delete_on_idle": "0:10:00",
            "user_metadata": "mine",
            "support_ordering": True,
            "status": "Active",
        },
        "counts": {
            "name": "eu/topic",
            "subscription_count": 1,
            "scheduled_message_count": 0,
            "size_in_bytes": 0,
        },
        "listed": ["eu/topic"],
        "no queue": [],
        "immutable": INVALID,
        "exists": EXISTS,
        "queue of that name": EXISTS,
        "missing": EMPTY,
        "missing to delete": NOT_FOUND,
        "left": [],
    },
    "subscriptions": {
        "told": {
            "name": "rich",
            "lock_duration": "0:00:13",
            "requires_session": True,
            "default_message_time_to_live": "0:11:00",
            "dead_lettering_on_message_expiration": True,
            "max_delivery_count": 15,
            "user_metadata": "mine",
            "dead_lettering_on_filter_evaluation_exceptions": False,
            "auto_delete_on_idle": "0:10:00",
        },
        "dead letters": "target",
        "counts": {
            "name": "rich",
            "total_message_count": 0,
            "active_message_count": 0,
            "dead_letter_message_count": 0,
            "transfer_dead_letter_message_count": 0,
        },
        "listed": ["plain", "rich"],
        "listed counts": ["plain", "rich"],
        "exists": EXISTS,
        "missing": NOT_FOUND,
        "missing to update": NOT_FOUND,
        "of no topic": NOT_FOUND,
        "missing to delete": NOT_FOUND,
        "long name": INVALID,
        "left": ["plain"],
    },
    "rules": {
        "default": ["TrueRuleFilter", "1=1"],
        "parameters": ["SET priority = @high", {"@high": "many"}],
        "correlation": {
            "correlation_id": "c",
            "message_id": "m",
            "to": "t",
            "reply_to": "r",
            "label": "l",
            "session_id": "s",
            "reply_to_session_id": "rs",
            "content_type": "ct",
        },
        "values": True,
        "updated": "priority < 5",
        "listed": ["$Default", "correlation", "every", "sql"],
        "exists": EXISTS,
        "missing": NOT_FOUND,
        "missing to update": NOT_FOUND,
        "missing to delete": NOT_FOUND,
        "wrong": INVALID,
        "wrong action": INVALID,
        "left": ["correlation", "every", "sql"],
    },
}
