import random
from xml.etree import ElementTree

import pytest

from gateway.domain.backlog import (
    is_backlog,
    is_backlog_of,
    is_beside,
    listing_prefix,
    own_queue,
    owner_of,
    properties,
    queue_name,
    queue_prefix,
    queues_to_try,
)
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.wire.servicebus.atom import build_request
from gateway.wire.servicebus.atom_operations import PutQueue
from gateway.wire.servicebus.description import NAMESPACE


def test_the_queues_are_named_as_the_legacy_client_does():
    assert queue_name("contoso", 0).name == "contoso/x-servicebus-transfer/0"


def test_an_own_queue_is_a_backlog_queue_that_older_syphons_dont_list():
    queue = own_queue("East", EntityPath("Payments/eu"))

    assert is_backlog(queue)
    assert not is_beside(queue)
    assert is_backlog_of("east", queue)
    assert not is_backlog_of("west", queue)
    assert queue.name.startswith(listing_prefix("East"))
    assert not queue.name.startswith(queue_prefix("East"))


def test_an_own_queue_tells_its_entity():
    assert owner_of(own_queue("East", EntityPath("Payments/eu"))) == EntityPath("payments/EU")
    assert owner_of(queue_name("east", 0)) is None


def test_all_queues_are_tried_each_once_in_random_order():
    queues = [queue_name("east", index) for index in range(4)]

    orders = {tuple(map(str, queues_to_try(queues, random.Random(seed)))) for seed in range(200)}

    assert len(orders) == 24


# The properties that the legacy client sets of a backlog queue, by Microsoft's page about paired
# namespaces, as a request has them: TimeSpan.MaxValue is ten million days. All others keep their
# defaults.
FOREVER = "P10675199DT2H48M5.4775807S"
LEGACY = {
    "MaxSizeInMegabytes": "5120",
    "MaxDeliveryCount": "2147483647",
    "DefaultMessageTimeToLive": FOREVER,
    "AutoDeleteOnIdle": FOREVER,
    "LockDuration": "PT1M",
    "DeadLetteringOnMessageExpiration": "true",
    "EnableBatchedOperations": "true",
}


def described(properties):
    """The elements of the request that creates a queue with these properties."""
    request = build_request(PutQueue(entity=queue_name("east", 0), properties=properties))
    description = ElementTree.fromstring(request.body).find(f".//{{{NAMESPACE}}}QueueDescription")
    return {each.tag.partition("}")[2]: each.text for each in description}


def test_the_queues_are_made_as_the_legacy_client_does_where_one_may_receive_from_them():
    assert described(properties(legacy=True)) == described(QueueProperties()) | LEGACY


def test_else_only_the_lock_is_shorter_so_that_a_killed_syphon_keeps_nothing_for_long():
    short = {**LEGACY, "LockDuration": "PT15S"}

    assert described(properties(legacy=False)) == described(QueueProperties()) | short


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
