"""The slowest send of each trouble is known, whatever operators have pinned."""

from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.failover import State
from gateway.domain.health.send_counters import SendCounters
from gateway.domain.message import AcceptedBy
from gateway.telemetry.stalls import MOST, StallWatch
from tests.pairing.harness import ORDERS


def send(sends: SendCounters, seconds: float) -> None:
    sends.accepted(AcceptedBy.BACKLOG, 1, seconds)


def test_each_trouble_has_its_slowest_send() -> None:
    sends = SendCounters()
    watch = StallWatch(sends)
    send(sends, 9.0)
    for stall in (2.5, 0.25):
        watch.record(moved("primary", "suspect"))
        watch.record(moved("suspect", "secondary"))
        send(sends, stall)
        watch.record(moved("secondary", "primary"))

    assert (watch.troubles, watch.stalls) == (2, (2.5, 0.25))


def test_a_trouble_beside_pinned_entities_is_one_of_its_own() -> None:
    watch = StallWatch(SendCounters())
    found = []
    for entity, state in [
        ("bills", State.PINNED),
        ("news", State.PINNED),
        ("orders", State.SECONDARY),
        ("news", State.SECONDARY),
        ("orders", State.PINNED),
        ("news", State.PRIMARY),
        ("orders", State.SECONDARY),
    ]:
        watch.record_state(entity, state)
        found.append(watch.troubles)

    assert found == [1, 1, 2, 2, 2, 2, 3]


def test_as_many_troubles_are_told_as_a_record_has_room_for() -> None:
    watch = StallWatch(SendCounters())
    for _ in range(2 * MOST):
        watch.record(moved("primary", "suspect"))
        watch.record(moved("suspect", "primary"))

    assert (watch.troubles, len(watch.stalls)) == (2 * MOST, MOST)


def moved(before: str, after: str) -> EntityStateChanged:
    return EntityStateChanged(
        entity=ORDERS, before=before, after=after, reason="refused", cause="failed"
    )
