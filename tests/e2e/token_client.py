"""
The answers of a Pairgate to the current SDKs with tokens of an identity provider, over TLS.

Runs in `.venv-azure`, as a process of its own, and prints one JSON object. Tokens come from the
token endpoint of `tests/harness/openid.py`.
Usage: token_client.py SERVICE_BUS_PORT STORAGE_PORT PROVIDER CA PART...
"""

import json
import ssl
import sys
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient
from azure.storage.queue import QueueClient, QueueServiceClient, generate_queue_sas

sys.path.append(str(Path(__file__).parents[2]))
from tests.pages import blocks

SERVICE_BUS, STORAGE, PROVIDER, CA, *PARTS = sys.argv[1:]
WAIT = 60  # seconds for a message that is there


class Credential:
    """A `TokenCredential` with these roles, which notes the requested scopes."""

    def __init__(self, *roles, valid=3600, subject="the-application"):
        self.roles, self.valid, self.subject, self.asked = roles, valid, subject, []

    def get_token(self, *scopes, **options):
        self.asked.append([*scopes, options.get("tenant_id")])
        audience = scopes[0].removesuffix("/.default")
        now = int(time.time())
        claims = {
            "iss": PROVIDER,
            "aud": audience,
            "sub": self.subject,
            "roles": self.roles,
            "iat": now,
            "exp": now + self.valid,
        }
        form = urlencode({"claims": json.dumps(claims)}).encode()
        trust = ssl.create_default_context(cafile=CA)
        with urllib.request.urlopen(f"{PROVIDER}/token", form, context=trust) as answer:
            token = json.load(answer)["access_token"]
        return AccessToken(token, now + self.valid)


def service_bus(credential):
    return ServiceBusClient(
        "localhost",
        credential,
        custom_endpoint_address=f"sb://localhost:{SERVICE_BUS}",
        transport_type=TransportType.Amqp,
        connection_verify=CA,
        retry_total=0,
    )


def storage(credential):
    return QueueServiceClient(
        f"https://localhost:{STORAGE}/contoso",
        credential,
        connection_verify=CA,
        retry_total=0,
    )


def error_of(call, *arguments, **named):
    try:
        result = call(*arguments, **named)
        if hasattr(result, "__next__"):
            next(result)
    except HttpResponseError as error:
        return [type(error).__name__, error.status_code]
    except ServiceBusError as error:
        return type(error).__name__
    return None


def send_one(credential):
    with service_bus(credential) as client, client.get_queue_sender("orders") as link:
        link.send_messages(ServiceBusMessage("by token"))


def amqp():
    sender, receiver = Credential("Orders.Send"), Credential("Orders.Listen")
    send_one(sender)
    with service_bus(receiver) as client, client.get_queue_receiver("orders") as link:
        [message] = link.receive_messages(max_wait_time=WAIT)
        link.complete_message(message)
    return {
        "received": str(message),
        "refused": error_of(send_one, receiver),
        "nobody": error_of(send_one, Credential()),
        "asked": sender.asked[:1],
    }


def management():
    with ServiceBusAdministrationClient(
        "localhost:" + SERVICE_BUS, Credential("Operator"), connection_verify=CA, retry_total=0
    ) as client:
        client.create_queue("made")
        names = sorted(queue.name for queue in client.list_queues())
    with ServiceBusAdministrationClient(
        "localhost:" + SERVICE_BUS, Credential("Orders.Send"), connection_verify=CA, retry_total=0
    ) as client:
        refused = error_of(client.create_queue, "not-allowed")
    return {"names": names, "refused": refused}


def queues():
    sender, receiver = Credential("Orders.Send"), Credential("Orders.Listen")
    storage(sender).get_queue_client("orders").send_message("by token")
    queue = storage(receiver).get_queue_client("orders")
    [message] = queue.receive_messages(max_messages=1)
    queue.delete_message(message)
    stranger = Credential()
    return {
        "received": message.content,
        "refused": error_of(queue.send_message, "not allowed"),
        "depth": queue.get_queue_properties().approximate_message_count,
        "create": error_of(storage(sender).create_queue, "not-allowed"),
        "nobody": error_of(storage(stranger).get_queue_client("orders").send_message, "no"),
        "asked": sender.asked[:1],
        "challenged": challenged(),
    }


def delegated():
    """A client without a token has a SAS by a user delegation key, as the SDK makes it."""
    start = datetime.now(UTC)
    until = start + timedelta(hours=1)
    key = storage(Credential("Orders.Send")).get_user_delegation_key(expiry=until, start=start)
    sas = generate_queue_sas(
        "contoso", "orders", permission="raup", expiry=until, user_delegation_key=key
    )
    queue = QueueServiceClient(
        f"https://localhost:{STORAGE}/contoso", sas, connection_verify=CA, retry_total=0
    ).get_queue_client("orders")
    queue.send_message("by a signature")
    bound = generate_queue_sas(
        "contoso",
        "orders",
        permission="raup",
        expiry=until,
        user_delegation_key=key,
        user_delegation_oid="the-user",
    )
    nobody = storage(Credential()).get_user_delegation_key
    return {
        "oid": key.signed_oid,
        "refused": error_of(queue.receive_message),
        "nobody": error_of(nobody, expiry=until, start=start),
        "too_long": error_of(
            storage(Credential("Orders.Send")).get_user_delegation_key,
            expiry=until + timedelta(days=7),
            start=start,
        ),
        "bound": [
            error_of(queue_by(bound, user).send_message, "by the user")
            for user in (Credential(subject="the-user"), Credential("Orders.Send"), None)
        ],
        "tenant": error_of(
            storage(Credential("Orders.Send")).get_user_delegation_key,
            expiry=until,
            start=start,
            delegated_user_tid="another",
        ),
    }


def queue_by(sas, credential):
    return QueueClient.from_queue_url(
        f"https://localhost:{STORAGE}/contoso/orders?{sas}",
        credential,
        connection_verify=CA,
        retry_total=0,
    )


def page():
    """The code of the page runs; the hosts differ, and so does the credential."""
    delegation, clients = blocks("docs/how-to/connect/accept-tokens.md", "python")
    asked = []

    def credential():
        made = Credential("Orders.Send")
        asked.append(made.asked)
        return made

    names = {
        **globals(),
        "service": storage(Credential("Orders.Send")),
        "DefaultAzureCredential": credential,
        "ServiceBusClient": partial(
            ServiceBusClient,
            custom_endpoint_address=f"sb://localhost:{SERVICE_BUS}",
            connection_verify=CA,
        ),
        "QueueServiceClient": partial(QueueServiceClient, connection_verify=CA),
    }
    exec(delegation + clients.replace("gateway.example.net:10001", f"localhost:{STORAGE}"), names)
    queue_by(names["sas"], None).send_message("by a signature")
    names["queues"].get_queue_client("orders").send_message("by token")
    with names["client"] as client, client.get_queue_sender("orders") as link:
        link.send_messages(ServiceBusMessage("by token"))
    return sorted(each[0][0] for each in asked)


def challenged():
    """The SDK asks for a token as the challenge of a 401 says, and then it works."""
    credential = Credential("Orders.Send")
    service = QueueServiceClient(
        f"https://localhost:{STORAGE}/contoso",
        credential,
        audience="https://elsewhere.example",
        connection_verify=CA,
        retry_total=0,
    )
    service.get_queue_client("orders").send_message("after a challenge")
    return credential.asked


def main():
    json.dump({part: globals()[part]() for part in PARTS}, sys.stdout)


if __name__ == "__main__":
    main()
