"""Each entity has a queue of its own name, and each name identifies its entity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.brokers.storage_queue.names import MAX_OWN, beginnings, entity_of, queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire.storage_queue.fields import is_name

keys = st.text("aA0z-._~$/pgnst", min_size=1, max_size=20).filter(
    lambda key: not EntityPath(key).is_dead_letter and not key.endswith("-poison")
)


@pytest.mark.parametrize(
    ("entity", "name"),
    [
        ("orders", "orders"),
        ("Orders", "orders"),
        ("a-b", "a-b"),
        ("orders/$DeadLetterQueue", "orders-poison"),
        ("orders-poison", "orders-poison"),
        ("east/x-servicebus-transfer/0", "pg-eastzsx-servicebus-transferzs0"),
        ("a/b/$deadletterqueue", "pg-azsb-poison"),
        ("ab", "pg-ab"),
        ("a--b-", "pg-a-zhbzh"),
        ("-a", "pg-zha"),
        ("jazz.x_y$", "pg-jazzzzzdxzuyzm"),
        ("pg-x", "pg-pg-x"),
        ("shop~placed", "pg-shopztplaced"),
        ("orders/x-pairgate-shard/2", "pg-orderszn2"),
        ("Orders/x-pairgate-shard/2/$DeadLetterQueue", "pg-orderszn2-poison"),
    ],
)
def test_names_are_as_documented(entity: str, name: str) -> None:
    assert queue_name(EntityPath(entity)) == name


@given(keys, st.integers(0, 99))
def test_every_name_is_legal_and_leads_back(key: str, shard: int) -> None:
    entity = EntityPath(key).shard(shard)
    name = queue_name(entity)

    assert is_name(name)
    assert is_name(f"{name}-poison")
    assert entity_of(name) == entity
    path = entity.name
    assert all(any(name.startswith(b) for b in beginnings(path[:n])) for n in range(len(path) + 1))


@given(st.lists(st.tuples(keys, st.integers(0, 3)), unique_by=lambda p: (p[0].lower(), p[1])))
def test_no_two_have_one_queue(pairs: list[tuple[str, int]]) -> None:
    names = [queue_name(EntityPath(key).shard(shard)) for key, shard in pairs]

    assert len(set(names)) == len(names)


@given(st.from_regex(r"(pg-)?[a-z0-9](-?[a-z0-9]){2,20}", fullmatch=True))
def test_a_queue_is_nobody_s_or_the_one_of_its_entity(name: str) -> None:
    entity = entity_of(name)

    assert entity is None or queue_name(entity) == name


@pytest.mark.parametrize(
    ("entity", "said"),
    [
        ("x" * (MAX_OWN + 1), "56 characters"),
        ("a/" + "x" * MAX_OWN, "56 characters"),
        ("a\u00e4", "letters, digits"),
        ("orders/$Transfer/$DeadLetterQueue", "no topics: the name of a queue"),
        ("t/subscriptions/s", "no topics: the name of a queue"),
        ("orders-poison/$DeadLetterQueue", "no dead-letter queue of its own"),
    ],
)
def test_a_name_that_can_have_no_queue_is_refused_with_its_reason(entity: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        queue_name(EntityPath(entity))
