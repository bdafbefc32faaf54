"""`[[sharding]]`: its values, its errors, and the queues that it plans."""

import pytest

from tests.config.texts import ONE, PAIR, config, problems

TWO = """
[namespaces.here]
url = "memory:"
queues = ["orders"]
[namespaces.there]
url = "memory:"
"""


def sharding(text: str, queue: str = "orders") -> str:
    return f'[[sharding]]\nqueue = "{queue}"\n{text}\n'


def test_the_shards_are_planned_with_their_queue_where_they_are() -> None:
    found = config(TWO + sharding('shards = 3\nnamespaces = ["here", "there", "here"]'))

    planned = {
        name: [queue.path.name for queue in namespace.plan.queues]
        for name, namespace in found.namespaces.items()
    }
    assert planned == {
        "here": ["orders", "orders/x-pairgate-shard/2"],
        "there": ["orders/x-pairgate-shard/1"],
    }
    assert found.further_namespaces == ("there",)


def test_a_queue_that_is_not_planned_has_no_planned_shards() -> None:
    assert config(ONE + sharding("shards = 3")).namespaces["here"].plan.queues == ()


def test_a_namespace_with_shards_needs_no_pair() -> None:
    assert problems(TWO)[0].startswith("pairing: is missing")
    assert config(TWO + sharding('shards = 2\nnamespaces = ["here", "there"]'))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("", "sharding[0].shards: is missing"),
        ('shards = 2\nnamespaces = ["here"]', "sharding[0].namespaces: one for each of 2 shards"),
        ("shards = 0", "sharding[0].shards: "),
        ("shards = 1001", "sharding[0].shards: "),
        ("shards = 2\ndrain = [2]", "sharding[0].drain: numbers of shards expected, 0 to 1, got 2"),
        ("shards = 2\ndrain = [0, 1]", "sharding[0].drain: at least one shard must get messages"),
        (
            'shards = 2\nnamespaces = ["here", "x"]',
            "sharding[0].namespaces: there is no namespace 'x'",
        ),
        ('shards = 2\nnamespaces = ["x", "here"]', "sharding[0].namespaces: 'here' expected first"),
        ("shards = 2\nspread = 1", "sharding[0].spread: unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_key(rule: str, problem: str) -> None:
    assert any(line.startswith(problem) for line in problems(ONE + sharding(rule)))


@pytest.mark.parametrize(
    "queue", ["a b", "orders/$DeadLetterQueue", "t/Subscriptions/s", "orders/x-pairgate-shard/1"]
)
def test_only_a_queue_is_sharded(queue: str) -> None:
    [problem] = problems(ONE + sharding("shards = 2", queue))
    assert problem.startswith("sharding[0].queue: ")


def test_the_secondary_has_no_shards() -> None:
    [problem] = problems(PAIR + sharding('shards = 2\nnamespaces = ["east", "west"]'))
    assert problem.startswith("sharding[0].namespaces: 'west' is the secondary")


def test_a_queue_is_sharded_once() -> None:
    text = ONE + sharding("shards = 2") + sharding("shards = 3", "Orders")
    assert "sharding: the queue 'orders' is given twice" in problems(text)
