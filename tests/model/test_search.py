"""The protocol loses nothing in any order of steps, and each wrong design does."""

import gc
from collections import Counter

import pytest

from tests.model.protocol import GONE, Design, Message, Send, State, Step, start
from tests.model.search import drained, search, what_is_broken
from tests.model.steps import moves
from tests.model.wrong_designs import WRONG

RIGHT = Design()


# The smallest scope that refutes it is enough: a shortest way has no more than it needs.
SCOPES = ((1, 1, 1), (2, 1, 1), (2, 2, 2))


def refuted(design):
    for messages, syphons, troubles in SCOPES:
        found = search(start(messages=messages, syphons=syphons, troubles=troubles), design)
        if found.broken:
            break
    return found


@pytest.fixture(autouse=True)
def _without_garbage():
    """A search makes millions of small values and no cycles: looking for those takes half of it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "syphons", "troubles", "least"),
    [(2, 2, 2, 300_000), (1, 2, 3, 30_000), (2, 1, 2, 50_000)],
)
def test_every_reachable_state_is_good_and_can_be_drained(messages, syphons, troubles, least):
    begin = start(messages=messages, syphons=syphons, troubles=troubles)

    found = search(begin, RIGHT)

    assert found.broken is None, found.describe()
    assert found.states > least


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_design_is_refuted_by_a_shortest_way(name):
    design, broken, way = WRONG[name]

    found = refuted(design)

    assert found.broken == broken
    assert way is None or [step for step, _, _ in found.trace] == way


def test_every_flag_of_a_design_is_refuted():
    refuted = {
        flag
        for design, _, _ in WRONG.values()
        for flag in Design.__slots__
        if getattr(design, flag, None) is True
    }

    assert refuted == {flag for flag in Design.__slots__ if getattr(RIGHT, flag, None) is False}


def test_a_trace_can_be_followed():
    design, _, _ = WRONG["sends again at once what is only slow"]
    state = start(messages=1, syphons=1, troubles=0)

    found = search(state, design)
    for label in found.trace:
        state = dict(moves(state, design))[label]

    assert what_is_broken(state) == found.broken == "S6"


def test_every_step_is_taken():
    begin = start(messages=1, syphons=2, troubles=2)
    taken, seen, queue = Counter(), {begin}, [begin]
    while queue:
        for (step, _, _), after in moves(queue.pop(), RIGHT):
            taken[step] += 1
            if after not in seen:
                seen.add(after)
                queue.append(after)

    assert set(taken) == set(Step)


GOOD = Message(Send.ACKED, False, 0, True, 0, 0, ())
BAD = {
    "S1": GOOD._replace(arrived=False),
    "S2": GOOD._replace(send=Send.IDLE),
    "S3": GOOD._replace(send=Send.FAILED),
    "S6": GOOD._replace(allowed=-1),
    "S8": GOOD._replace(send=Send.UNKNOWN, arrived=False, copies=(GONE,)),
}


@pytest.mark.parametrize("broken", BAD)
def test_a_bad_state_is_named(broken):
    assert what_is_broken(State((BAD[broken],), (), 0)) == broken


def test_a_good_state_is_drained():
    state = State((GOOD,), (), 0)

    assert what_is_broken(state) is None
    assert drained(state)
