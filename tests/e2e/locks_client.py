"""
Settles messages by azure-servicebus 7.15 over another connection than that which received them.

Runs in `.venv-azure`, as a process of its own, and prints one JSON object: how many messages were
settled, and each error. The first half of them is received at the first address and
settled at the second one, the other half the other way round.
Usage: locks_client.py ADDRESS ADDRESS MESSAGES
"""

import json
import sys
from collections import Counter

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

ONE, TWO, MESSAGES = sys.argv[1], sys.argv[2], int(sys.argv[3])
WAIT = 60  # seconds for a message that is there


def receiver_at(address):
    """A receiver with a connection of its own."""
    client = ServiceBusClient.from_connection_string(
        f"Endpoint=sb://{address};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
        retry_total=0,
    )
    return client.get_queue_receiver("orders")


def renew_and_settle(first, second, *, is_complete):
    """
    `first` receives a deferred message, which the SDK settles by its lock token, and ends its
    connection.
    """
    with first:
        (message,) = first.receive_messages(max_wait_time=WAIT)
        first.defer_message(message)
        (message,) = first.receive_deferred_messages([message.sequence_number])
    with second:
        before = message.locked_until_utc
        assert second.renew_message_lock(message) > before
        if is_complete:
            second.complete_message(message)
        else:
            second.dead_letter_message(message, reason="Odd")


def main():
    errors = Counter()
    for number in range(MESSAGES):
        there, here = (ONE, TWO) if number < MESSAGES // 2 else (TWO, ONE)
        try:
            renew_and_settle(receiver_at(there), receiver_at(here), is_complete=number % 2 == 0)
        except ServiceBusError as error:
            errors[repr(error)] += 1
    sys.stdout.write(json.dumps({"settled": MESSAGES - errors.total(), "errors": errors}))


main()
