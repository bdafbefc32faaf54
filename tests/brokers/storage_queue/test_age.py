"""The age of a message is told by the service's clock alone."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.brokers.storage_queue.deliveries import read_taken
from gateway.wire.storage_queue.operations import QueueMessage

NOW = datetime(2026, 1, 1, tzinfo=UTC)  # by the service's clock
LOCK = timedelta(seconds=30)


def taken(visible: datetime | None):
    item = QueueMessage(
        message_id="1", inserted=NOW - timedelta(seconds=50), visible=visible, body=b"text"
    )
    ours = NOW + timedelta(hours=1)
    return read_taken(item, LOCK, ours, number=1, token="t").delivery


def test_a_message_was_received_when_it_was_hidden():
    delivery = taken(NOW + LOCK)

    assert delivery.received - delivery.enqueued == timedelta(seconds=50)


@pytest.mark.parametrize("visible", [None, datetime(1, 1, 1, tzinfo=UTC)])
def test_of_a_message_without_a_date_that_can_be_right_nobody_knows(visible):
    assert taken(visible).received is None
