import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.backlog import queue_name
from gateway.domain.entity import EntityPath
from gateway.domain.message import Message
from gateway.extensions.order.keys import is_ordered, key_of
from gateway.extensions.order.options import OrderLeaseMode
from gateway.extensions.order.queues import ORDERED_QUEUES, lease_queue, ordered_queues
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import backlog_paths, backlog_queues
from tests.harness.options import made

ORDERS = EntityPath("Orders")


@pytest.mark.parametrize(
    ("entity", "patterns", "ordered"),
    [
        ("orders", ["orders"], True),
        ("Orders", ["ORDERS"], True),
        ("payments/eu", ["orders", "payments/*"], True),
        ("payments", ["payments/*"], False),
        ("orders-old", ["orders"], False),
        ("orders", [], False),
    ],
)
def test_patterns_say_which_entities_are_ordered(entity, patterns, ordered):
    assert is_ordered(EntityPath(entity), patterns) is ordered


def test_a_key_is_the_session_else_the_partition_key_else_the_entity():
    def digest(**fields):
        return key_of(ORDERS, Message(**fields)).digest

    assert digest(session_id="a") == digest(session_id="a", partition_key="b")
    different = [
        digest(),
        digest(session_id=""),
        digest(session_id="a"),
        digest(session_id="b"),
        digest(partition_key="a"),
        key_of(EntityPath("bills"), Message(session_id="a")).digest,
    ]
    assert len(set(different)) == len(different)


def test_the_case_of_an_entity_makes_no_other_key():
    first, second = Message(session_id="a"), Message(session_id="a")

    assert key_of(ORDERS, first).digest == key_of(EntityPath("orders"), second).digest


@given(session=st.text())
def test_each_key_has_one_of_the_ordered_backlog_queues(session):
    key = key_of(ORDERS, Message(session_id=session))

    assert key.number in range(ORDERED_QUEUES)


@pytest.mark.parametrize(
    ("lease", "more"), [(OrderLeaseMode.OFF, []), (OrderLeaseMode.WAIT, [lease_queue("east")])]
)
def test_a_pair_with_ordered_entities_needs_their_queues_beside_the_usual_ones(lease, more):
    ordered = {"ordered": ("orders",), "order_lease": lease}
    options = made(PairOptions, label="east", backlog_queues=2, **ordered)
    with_messages = [*(queue_name("east", index) for index in range(2)), *ordered_queues("east")]

    assert backlog_paths(options) == with_messages
    assert [queue.path for queue in backlog_queues(options)] == [*with_messages, *more]


def test_a_digest_stays_what_it_is():
    """The messages of a key stay in one queue, whichever version of a gateway diverts them."""
    key = key_of(ORDERS, Message(session_id="a"))

    assert (key.digest, key.number) == ("11252d1271d7ab148bb697952c26a6a7", 2)


def test_long_keys_leave_no_memory_behind() -> None:
    tracemalloc.start()
    for number in range(100):
        key_of(ORDERS, Message(partition_key=f"{number:0100000}"))
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert left < 1024 * 1024
