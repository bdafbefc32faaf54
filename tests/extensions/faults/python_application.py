"""
An application's own tests with azure-servicebus and azure-storage-queue: each kind of fault, each
operation, and one of two clients.

`test_faults_e2e.py` runs them as an application would: by pytest, with the documented plugin.
"""

import http.client

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)
from azure.storage.queue import QueueClient

ONCE = {"retry_total": 0}
KINDS = ("busy", "fail", "detach", "drop", "lose", "delay")
OF_ALL = ("busy", "fail", "drop", "lose", "delay")
ERRORS = {
    "busy": ServiceBusServerBusyError,
    "fail": ServiceBusError,
    "detach": ServiceBusConnectionError,
    "drop": ServiceBusConnectionError,
    "lose": ServiceBusConnectionError,
    "delay": type(None),
}


@pytest.fixture(scope="session")
def pairgate_clients():
    return ["shop"]


@pytest.fixture(scope="session")
def pairgate_queues():
    return ["orders"]


@pytest.fixture
def client(pairgate):
    with ServiceBusClient.from_connection_string(pairgate.connection_string, **ONCE) as found:
        yield found


def error_of(call, *arguments):
    try:
        call(*arguments)
    except (ServiceBusError, HttpResponseError, ServiceRequestError, ServiceResponseError) as error:
        return error
    return None


def send(client, queue):
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("hello"))


def of_storage(pairgate, queue):
    return QueueClient.from_connection_string(
        pairgate.storage_connection_string, queue, retry_total=0
    )


def count(pairgate, queue):
    """By the Queue service, whose SDK doesn't pause at each end of a link."""
    return len(of_storage(pairgate, queue).peek_messages(32))


def test_a_send_meets_each_kind(pairgate, client):
    found, kept = {}, {}
    for kind in KINDS:
        queue = pairgate.new_queue()
        pairgate.fault(kind, entity=queue, operation="send", count=1, delay=0.1)
        found[kind] = type(error_of(send, client, queue))
        kept[kind] = count(pairgate, queue)

    assert found == ERRORS
    assert kept == {"busy": 0, "fail": 0, "detach": 0, "drop": 0, "lose": 1, "delay": 1}
    assert pairgate.faults() == ()


@pytest.mark.parametrize("kind", ["busy", "detach", "drop", "lose"])
def test_a_receiver_meets_it_and_gets_the_message_afterwards(pairgate, client, kind):
    queue = pairgate.new_queue()
    of_storage(pairgate, queue).send_message("hello")
    pairgate.fault(kind, entity=queue, operation="receive", count=1, delay=0.1)

    with client.get_queue_receiver(queue) as receiver:
        error = error_of(receiver.receive_messages, 1, 2)

    assert pairgate.faults() == ()
    assert kind == "lose" or count(pairgate, queue) == 1  # the lost one is locked
    assert error is None or isinstance(error, ServiceBusError)


@pytest.mark.parametrize(("operation", "kinds"), [("settle", OF_ALL), ("renew", ("busy", "lose"))])
def test_a_locked_message_meets_each_kind(pairgate, client, operation, kinds):
    found = {}
    for kind in kinds:
        queue = pairgate.new_queue()
        of_storage(pairgate, queue).send_message("hello")
        with client.get_queue_receiver(queue) as receiver:
            [message] = receiver.receive_messages(1, 10)
            pairgate.fault(kind, entity=queue, operation=operation, count=1, delay=0.1)
            settles = operation == "settle"
            act = receiver.complete_message if settles else receiver.renew_message_lock
            found[kind] = type(error_of(act, message))
            assert pairgate.faults() == ()

    assert found == {kind: ERRORS[kind] for kind in kinds}


def test_only_one_of_two_clients_meets_it(pairgate, client):
    queue = "orders"
    shop = pairgate.connection_string_of("shop")

    with pairgate.fault("busy", client="shop", operation="send") as fault:
        with ServiceBusClient.from_connection_string(shop, **ONCE) as other:
            refused = error_of(send, other, queue)
        send(client, queue)
        times = fault.times

    assert isinstance(refused, ServiceBusServerBusyError)
    assert (times, count(pairgate, queue), pairgate.faults()) == (1, 1, ())


def test_clients_of_the_queue_service_meet_them(pairgate):
    name, found = pairgate.new_queue(), {}
    queue = of_storage(pairgate, name)
    for kind in KINDS:
        pairgate.fault(kind, entity=name, operation="send", count=1, delay=0.1)
        error = error_of(queue.send_message, "hello")
        found[kind] = getattr(error, "status_code", type(error).__name__)
    kept = count(pairgate, name)
    pairgate.fault("busy", client="devstoreaccount1", operation=["receive", "settle"], count=1)
    received = error_of(lambda: list(queue.receive_messages()))

    assert found == {
        "busy": 503,
        "fail": 503,
        "detach": 500,
        "drop": "ServiceResponseError",
        "lose": "ServiceResponseError",
        "delay": "NoneType",
    }
    assert (kept, received.status_code) == (2, 503)


def test_requests_over_http_meet_them(pairgate):
    queue, found = pairgate.new_queue(), {}
    for kind in KINDS:
        pairgate.fault(kind, entity=queue, operation="send", count=1, delay=2.0)
        connection = http.client.HTTPConnection(pairgate.address, timeout=10)
        headers = {"Authorization": pairgate.token(queue)}
        try:
            connection.request("POST", f"/{queue}/messages", b"hello", headers)
            answer = connection.getresponse()
            found[kind] = answer.status, answer.headers["Retry-After"]
        except (http.client.HTTPException, ConnectionError) as error:
            found[kind] = type(error).__name__
        finally:
            connection.close()

    assert found.pop("drop") in {"RemoteDisconnected", "ConnectionResetError"}
    assert found.pop("lose") in {"RemoteDisconnected", "ConnectionResetError"}
    assert found == {
        "busy": (503, "2"),
        "fail": (503, "1"),
        "detach": (504, None),
        "delay": (201, None),
    }
