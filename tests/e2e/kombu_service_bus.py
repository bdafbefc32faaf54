"""
kombu's `azureservicebus` talks to a Pairgate with TLS.

Usage: kombu_service_bus.py ADDRESS CA put|get. Needs kombu and azure-servicebus. The SDK dials port
5671 for AMQP; the rest of the name is for kombu, which adds Azure's domain to names without `.net`.
"""

import json
import sys

import certifi
from kombu import Connection

ADDRESS, AUTHORITY, STEP = sys.argv[1:]
URL = f"azureservicebus://RootManageSharedAccessKey:SAS_KEY_VALUE@{ADDRESS}:5671/pairgate.net"

certifi.where = lambda: AUTHORITY  # kombu hands no `connection_verify` on
with Connection(URL, transport_options={"wait_time_seconds": 1}) as connection:
    queue = connection.SimpleQueue("orders")
    if STEP == "put":
        queue.put({"task": 1})
        json.dump("put", sys.stdout)
    else:
        message = queue.get(timeout=200)
        message.ack()
        json.dump(message.payload, sys.stdout)
    queue.close()
