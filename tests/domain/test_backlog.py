import random
from datetime import timedelta

import attrs
import pytest

from gateway.domain.backlog import (
    QUEUE_PROPERTIES,
    is_backlog,
    properties,
    queue_name,
    queues_to_try,
)
from gateway.domain.entity import EntityPath, QueueProperties


def test_the_queues_are_named_as_the_legacy_client_does():
    assert queue_name("contoso", 0).name == "contoso/x-servicebus-transfer/0"


def test_all_queues_are_tried_each_once_in_random_order():
    queues = [queue_name("east", index) for index in range(4)]

    orders = {tuple(map(str, queues_to_try(queues, random.Random(seed)))) for seed in range(200)}

    assert len(orders) == 24


def test_the_queues_are_made_as_the_legacy_client_does_where_one_may_receive_from_them():
    assert QueueProperties(
        max_size_in_megabytes=5120,
        max_delivery_count=2**31 - 1,
        default_time_to_live=None,
        auto_delete_on_idle=None,
        lock_duration=timedelta(minutes=1),
        dead_lettering_on_expiration=True,
        enable_batched_operations=True,
    ) == properties(legacy=True)


def test_else_only_the_lock_is_shorter_so_that_a_killed_syphon_keeps_nothing_for_long():
    short = timedelta(seconds=15)

    assert properties(legacy=False) == QUEUE_PROPERTIES
    assert attrs.evolve(properties(legacy=True), lock_duration=short) == QUEUE_PROPERTIES


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (queue_name("east", 3), True),
        (EntityPath("East/X-ServiceBus-Transfer/0"), True),
        (EntityPath("orders"), False),
        (EntityPath("x-servicebus-transfer/0"), False),
    ],
)
def test_a_backlog_queue_is_told_by_its_name(queue, expected):
    assert is_backlog(queue) is expected
