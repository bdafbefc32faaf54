import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.engine.locks import Deadlines
from tests.harness.retained import entries

KEYS = st.sampled_from("abcde")
MOMENTS = st.integers(0, 9).map(float)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, MOMENTS),
    st.tuples(st.just("drop"), KEYS, st.just(0.0)),
    st.tuples(st.just("run out"), st.just(""), MOMENTS),
)


def deadlines(**moments):
    made = Deadlines()
    for key, moment in moments.items():
        made.set(key, moment)
    return made


def run_out(tried, moment):
    """Drop the deadlines that have passed; return their keys."""
    keys = []
    while (over := tried.over(moment)) is not None:
        tried.drop(over[0])
        keys.append(over[0])
    return keys


@given(steps=st.lists(STEPS, max_size=60))
def test_deadlines_equal_a_plain_dictionary(steps):
    tried, naive = Deadlines(), {}
    for what, key, moment in steps:
        if what == "set":
            tried.set(key, moment)
            naive[key] = moment
        elif what == "drop":
            tried.drop(key)
            naive.pop(key, None)
        else:
            over = sorted((at, each) for each, at in naive.items() if at <= moment)
            assert run_out(tried, moment) == [each for _, each in over]
            naive = {each: at for each, at in naive.items() if at > moment}

        assert len(tried) == len(naive)
        assert tried.first() == min(naive.values(), default=None)
        assert all(tried.get(each) == naive.get(each) for each in "abcde")


def test_a_deadline_is_over_at_its_moment():
    assert run_out(deadlines(a=2.0), 1.9) == []
    assert run_out(deadlines(a=2.0), 2.0) == ["a"]


def test_a_deadline_that_is_set_again_ends_at_its_new_moment_alone():
    later = deadlines(a=1.0)
    later.set("a", 3.0)

    assert run_out(later, 2.0) == []
    assert run_out(later, 3.0) == ["a"]
    assert run_out(later, 9.0) == []


def test_a_cleared_deadline_never_ends():
    cleared = deadlines(a=1.0, b=2.0)
    cleared.clear()
    assert (len(cleared), cleared.first(), entries(cleared)) == (0, None, 0)
    cleared.set("b", 5.0)

    assert run_out(cleared, 9.0) == ["b"]


@pytest.mark.parametrize("again", ["set", "dropped"])
def test_outdated_deadlines_take_a_bounded_memory(again):
    busy = deadlines(b=2.0, a=1.0)
    for moment in range(10_000):
        busy.set("c", 3.0 + moment)
        if again == "dropped":
            busy.drop("c")

    assert entries(busy) <= 3 * len(busy) + 64
    assert busy.first() == 1.0


def test_outdated_entries_are_not_looked_for_at_each_change():
    busy = deadlines(a=0.0)
    for moment in range(63):
        busy.set("a", float(moment))

    assert entries(busy) > 60
