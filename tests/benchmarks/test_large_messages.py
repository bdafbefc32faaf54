"""A message of 20 MiB is answered on each protocol: accepted, or refused with its limit."""

import pytest

from benchmarks.large_messages import measure

pytestmark = pytest.mark.slow


async def test_large_messages_are_answered_on_each_protocol(tmp_path):
    found = await measure([20], tmp_path)

    told = {way: answer.partition(",")[0] for way, [answer] in found.items()}
    assert told == {
        ("AMQP", False): "MessageTooLarge",
        ("AMQP", True): "accepted",
        ("Service Bus REST", False): "413",
        ("Service Bus REST", True): "accepted",
        ("Storage Queue", False): "413",
        ("Storage Queue", True): "413",  # a text has at most 64 KiB there
    }
