"""
Prints requests that azure-storage-queue has signed by its own code, for vectors.json.

Runs in .venv-azure; nothing is sent: python tests/wire/storage_queue/signers.py
"""

import contextlib
import json
import sys
from datetime import UTC, datetime

from azure.core.pipeline.transport import HttpTransport
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    QueueSasPermissions,
    QueueServiceClient,
    ResourceTypes,
    generate_account_sas,
    generate_queue_sas,
)

ACCOUNT = "contoso"
KEY = "YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw=="
SECONDS = datetime(2036, 1, 1, tzinfo=UTC)


class Recorded(Exception):
    pass


class Recorder(HttpTransport):
    def __init__(self):
        self.requests = []

    def send(self, request, **kwargs):
        body = request.body or ""
        self.requests.append(
            {
                "method": request.method,
                "url": request.url,
                "headers": dict(request.headers),
                "body": body.decode() if isinstance(body, bytes) else body,
            }
        )
        raise Recorded

    def open(self):
        pass

    def close(self):
        pass

    def __exit__(self, *args):
        pass


def recorded(url):
    recorder = Recorder()
    service = QueueServiceClient(
        url, credential={"account_name": ACCOUNT, "account_key": KEY}, transport=recorder
    )
    queue = service.get_queue_client("orders-1")
    metadata = {"Zeta": "1", "alpha_2": "two  words", "a1": "x", "A_b": "grün", "ab": "y"}
    receipt = "AgAA+/=="
    for call in (
        lambda: list(service.list_queues(name_starts_with="a b+c", include_metadata=True)),
        lambda: service.get_service_properties(),
        lambda: service.get_service_stats(),
        lambda: queue.create_queue(metadata=metadata),
        lambda: queue.get_queue_properties(),
        lambda: queue.set_queue_metadata(metadata),
        lambda: queue.set_queue_access_policy({"p": AccessPolicy(permission="r")}),
        lambda: queue.get_queue_access_policy(),
        lambda: queue.send_message("hello <&> grün", visibility_timeout=3, time_to_live=60),
        lambda: queue.receive_message(visibility_timeout=9),
        lambda: queue.peek_messages(max_messages=32),
        lambda: queue.update_message("an-id", receipt, content="new", visibility_timeout=0),
        lambda: queue.delete_message("an-id", receipt),
        lambda: queue.clear_messages(),
        lambda: queue.delete_queue(),
    ):
        with contextlib.suppress(Recorded):
            call()
    return recorder.requests


def signatures():
    account = generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True),
        SECONDS,
        start=datetime(2025, 1, 1, tzinfo=UTC),
        ip="10.0.0.1-10.0.0.9",
        protocol="https",
    )
    queue = generate_queue_sas(
        ACCOUNT, "orders-1", KEY, QueueSasPermissions(read=True, process=True), SECONDS
    )
    stored = generate_queue_sas(ACCOUNT, "orders-1", KEY, policy_id="pol1")
    return [account, queue, stored]


requests = [
    *recorded("http://127.0.0.1:10001/contoso"),
    *recorded("https://contoso.queue.core.windows.net"),
]
json.dump({"requests": requests, "sas": signatures()}, sys.stdout, indent=1)
