import random

from gateway.domain.backlog import queue_name, queues_to_try


def test_the_queues_are_named_as_the_legacy_client_does():
    assert queue_name("contoso", 0).name == "contoso/x-servicebus-transfer/0"


def test_all_queues_are_tried_each_once_in_random_order():
    queues = [queue_name("east", index) for index in range(4)]

    orders = {tuple(map(str, queues_to_try(queues, random.Random(seed)))) for seed in range(200)}

    assert len(orders) == 24
