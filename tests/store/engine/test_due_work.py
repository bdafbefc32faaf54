"""Due work of unused entities: when they are looked at, and which are idle for too long."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.store.engine.dormant import DormantQueue
from gateway.store.engine.due_work import DueWork, idle_end
from gateway.store.engine.entity_store import StoredEntity
from tests.store.engine.enqueue import Way, leading
from tests.store.engine.queue import at, make

HOUR = timedelta(hours=1)
LONGEST_TIMESPAN = timedelta(days=10_675_199)


def test_a_queue_that_may_have_something_to_do_is_looked_at_at_once() -> None:
    due_work = DueWork()
    due_work.add(make())
    before = due_work.first()
    due_work.add(make(auto_delete_on_idle=HOUR))

    assert (before, due_work.first()) == (None, -math.inf)


def test_a_queue_that_has_nothing_to_do_any_more_is_not_looked_at() -> None:
    due_work, queue = DueWork(), leading(Way())
    due_work.schedule(queue, 5.0, at(1))
    before = due_work.first()
    due_work.schedule(queue, None, at(1))

    assert (before, due_work.first()) == (5.0, None)


def test_an_unused_entity_without_an_idle_limit_is_not_looked_at_again() -> None:
    due_work = DueWork()
    forwards = QueueProperties(auto_delete_on_idle=HOUR, forward_to="bills")
    stored = StoredEntity(path=EntityPath("orders"), properties=forwards, created=0, updated=0)
    due_work.wait_until_idle(DormantQueue(stored, forwards, {}), at(1))

    assert due_work.first() is None


@pytest.mark.parametrize(
    "forget", [lambda due_work: due_work.drop("orders"), DueWork.clear], ids=["dropped", "cleared"]
)
def test_a_forgotten_queue_is_not_looked_at(forget: Callable[[DueWork], None]) -> None:
    due_work = DueWork()
    due_work.schedule(leading(Way()), 5.0, at(1))
    forget(due_work)

    assert due_work.first() is None
    assert list(due_work.run_out(at(9))) == []


@pytest.mark.parametrize(
    ("properties", "end"),
    [
        ({}, math.inf),
        ({"auto_delete_on_idle": HOUR}, 3601.0),
        ({"auto_delete_on_idle": LONGEST_TIMESPAN}, math.inf),
        ({"auto_delete_on_idle": HOUR, "forward_to": "bills"}, math.inf),
    ],
    ids=["no limit", "an hour", "for ever", "forwards"],
)
def test_an_entity_is_idle_for_too_long_after_its_time(
    properties: dict[str, Any], end: float
) -> None:
    assert idle_end(make(**properties), at(1)) == end
