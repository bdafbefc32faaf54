"""Each message belongs to a shard, and each delivery leads back to its shard."""

import tracemalloc

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.brokers.joined.sequence import inward, inward_number, outward, outward_number
from gateway.domain.entity import EntityPath
from gateway.domain.errors import NotSupported
from gateway.domain.message import Delivery, Message
from gateway.extensions.sharding.table import ShardingRule, ShardTable, key_of, place_of

ORDERS = EntityPath("Orders")
KEYS = [f"key {number}" for number in range(1000)]


def active(**rule: object) -> tuple[int, ...]:
    queue = ShardTable.of([ShardingRule(queue="orders", **rule)]).find(ORDERS)  # type: ignore[arg-type]
    assert queue is not None
    return queue.active


def test_the_first_shard_is_the_queue_itself() -> None:
    assert ORDERS.shard(0) is ORDERS
    assert (ORDERS.whole, ORDERS.shard_number) == (ORDERS, 0)


@given(number=st.integers(1, 999), dead=st.booleans())
def test_a_shard_knows_its_queue_and_its_number(number: int, dead: bool) -> None:
    entity = ORDERS.dead_letter if dead else ORDERS
    shard = entity.shard(number)

    assert (shard.whole.name, shard.shard_number) == (entity.name, number)
    assert shard.is_dead_letter is dead
    assert EntityPath.parse(shard.name) == shard


@pytest.mark.parametrize(
    "name", ["a/x-pairgate-shard/0", "a/x-pairgate-shard/x", "x-pairgate-shard/1"]
)
def test_a_name_that_is_nearly_that_of_a_shard_is_one_of_its_own(name: str) -> None:
    assert (EntityPath(name).whole.name, EntityPath(name).shard_number) == (name, 0)


def test_keys_are_spread_evenly() -> None:
    found = [place_of(key, (0, 1, 2, 3)) for key in KEYS]

    assert all(200 < found.count(number) < 300 for number in range(4))


def test_a_key_has_the_same_shard_in_every_process() -> None:
    assert [place_of(key, (0, 1, 2, 3)) for key in ("a", "b", "c", "\udcff")] == PLACES


PLACES = [2, 3, 2, 1]


def test_long_keys_leave_no_memory_behind() -> None:
    tracemalloc.start()
    for number in range(100):
        place_of(f"{number:0100000}", (0, 1, 2, 3))
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert left < 1024 * 1024


def test_another_shard_takes_its_share_and_moves_no_other_key() -> None:
    before = [place_of(key, (0, 1, 2)) for key in KEYS]
    after = [place_of(key, (0, 1, 2, 3)) for key in KEYS]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]

    assert set(moved) == {3}
    assert 200 < len(moved) < 300


def test_a_session_comes_before_a_partition_key() -> None:
    assert key_of(Message(session_id="s", partition_key="p")) == "s"
    assert key_of(Message(partition_key="p")) == "p"
    assert key_of(Message()) is None


def test_a_draining_shard_gets_nothing() -> None:
    assert active(shards=3, drain=(1,)) == (0, 2)
    assert active(shards=2, namespaces=("a", "b")) == (0, 1)


def test_a_key_has_messages_in_each_shard_that_was_its_own_before_it_drained() -> None:
    table = ShardTable.of([ShardingRule(queue="orders", shards=3)])
    for key in KEYS:
        owners = list[int]()
        for drain in ((), (1,), (1, 2)):
            table.replace([ShardingRule(queue="orders", shards=3, drain=drain)])
            queue = table.find(ORDERS)
            assert queue is not None
            if (owner := queue.shard_of(key)) not in owners:
                owners.append(owner)
        former = queue.former_shards_of(key)

        assert set(owners[:-1]) <= set(former)
        assert [number for number in former if number in owners] == owners[:-1]


def test_a_shard_that_joins_hides_no_former_one() -> None:
    table = ShardTable.of([ShardingRule(queue="orders", shards=2)])
    table.replace([ShardingRule(queue="orders", shards=3, drain=(1,))])
    queue = table.find(ORDERS)

    assert queue is not None
    moved = [key for key in KEYS if place_of(key, (0, 1)) == 1]
    assert {tuple(queue.former_shards_of(key)) for key in moved} == {(1,)}


def test_a_new_shard_gets_nothing_before_it_joins() -> None:
    table = ShardTable.of([ShardingRule(queue="orders", shards=2)])

    table.replace([ShardingRule(queue="orders", shards=4)])
    before = table.find(ORDERS)
    table.join(ORDERS, 3)
    after = table.find(ORDERS)

    assert before is not None
    assert after is not None
    assert (before.active, sorted(before.joining)) == ((0, 1), [2, 3])
    assert (after.active, sorted(after.joining)) == ((0, 1, 3), [2])


def test_new_shards_get_messages_at_once_if_all_others_drain() -> None:
    table = ShardTable.of([ShardingRule(queue="orders", shards=1)])

    table.replace([ShardingRule(queue="orders", shards=2, drain=(0,))])
    queue = table.find(ORDERS)

    assert queue is not None
    assert queue.active == (1,)


def test_a_reload_shards_no_other_queue() -> None:
    table = ShardTable.of([ShardingRule(queue="orders", shards=2)])

    table.replace([ShardingRule(queue="bulk", shards=2)])

    assert [queue.path.name for queue in table.queues] == ["orders"]


@given(number=st.integers(0, 2**53 - 1), shard=st.integers(0, 999))
def test_a_sequence_number_leads_back(number: int, shard: int) -> None:
    delivery = Delivery(message=Message(), sequence_number=number, enqueued_sequence_number=number)
    whole = outward(delivery, shard)

    assert inward_number(whole.sequence_number) == (shard, number)
    assert inward(whole) == delivery
    assert 0 <= whole.sequence_number < 2**63


@pytest.mark.parametrize("enqueued", [2**53, 5 << 55, 2**63 - 1, -1])
def test_an_enqueued_number_that_has_no_room_for_the_shard_is_left_out(enqueued: int) -> None:
    delivery = Delivery(message=Message(), sequence_number=7, enqueued_sequence_number=enqueued)
    whole = outward(delivery, 2)

    assert (inward_number(whole.sequence_number), whole.enqueued_sequence_number) == ((2, 7), None)
    assert inward(whole) == attrs.evolve(delivery, enqueued_sequence_number=None)
    assert inward(outward(delivery, 0)) == delivery


def test_a_number_that_has_no_room_for_the_shard_is_refused() -> None:
    with pytest.raises(NotSupported, match="a partitioned entity can't be received from"):
        outward_number(2**53, 1)
