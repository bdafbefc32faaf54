"""When entities that nobody asks for anything are looked at, and which are idle for too long."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gateway.domain.errands import Errands, idle_end
from tests.domain.test_intake import Way, leading
from tests.domain.test_queue import at, make

HOUR = timedelta(hours=1)
LONGEST_TIMESPAN = timedelta(days=10_675_199)


def test_what_may_have_something_to_do_is_looked_at_at_once() -> None:
    errands = Errands()
    errands.add(make())
    before = errands.first()
    errands.add(make(auto_delete_on_idle=HOUR))

    assert (before, errands.first()) == (None, -math.inf)


def test_what_has_nothing_to_do_any_more_is_not_looked_at() -> None:
    errands, queue = Errands(), leading(Way())
    errands.note(queue, 5.0, at(1))
    before = errands.first()
    errands.note(queue, None, at(1))

    assert (before, errands.first()) == (5.0, None)


@pytest.mark.parametrize(
    "forget", [lambda errands: errands.drop("orders"), Errands.clear], ids=["dropped", "cleared"]
)
def test_what_is_forgotten_is_not_looked_at(forget: Callable[[Errands], None]) -> None:
    errands = Errands()
    errands.note(leading(Way()), 5.0, at(1))
    forget(errands)

    assert errands.first() is None
    assert list(errands.run_out(at(9))) == []


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
