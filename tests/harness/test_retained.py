"""The measure of retained memory counts everything inside an object of the gateway."""

from gateway.domain.entity import EntityPath
from gateway.pairing.inflight import InFlight
from gateway.store.engine.locks import Locks
from tests.harness.retained import entries


class Foreign:
    def __init__(self):
        self.many = [1, 2, 3]


def test_an_object_held_deep_inside_counts():
    locks = Locks[str]()
    empty = entries(locks)
    locks.add("t", "held", 10.0)
    one = entries(locks)
    locks.add("u", "held", 10.0)

    assert empty < one < entries(locks)


def test_an_object_held_in_a_container_counts():
    assert entries([{"a": 1, "b": [2]}, EntityPath("orders"), {3}]) == 3 + 2 + 1 + 1


def test_an_object_that_isnt_of_the_gateway_is_not_looked_into():
    assert entries([Foreign()]) == 1


def test_an_object_that_holds_itself_is_counted_once():
    ring = []
    ring.append(ring)

    assert entries(ring) == 1


def test_an_object_that_holds_nothing_has_no_entries():
    assert entries(InFlight(1000)) == 0
