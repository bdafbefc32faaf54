"""The documented back-off of an idle queue."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.listening.scaling.polling import IdlePolling

seconds = st.floats(min_value=0.001, max_value=1e6)


@given(st.integers(1, 1000), st.integers(), st.floats(0.0, 1e6), seconds)
def test_a_delay_is_what_the_formula_says(count, seed, minimum, maximum):
    delay = IdlePolling(minimum=minimum, maximum=maximum).delay(count, random.Random(seed))
    delta = (2.0 ** min(count, 63) - 1) * 0.1

    assert min(minimum + 0.8 * delta, maximum) <= delay <= min(minimum + 1.2 * delta, maximum)


@pytest.mark.parametrize(("count", "delta"), [(1, 0.1), (2, 0.3), (3, 0.7), (9, 51.1)])
def test_a_delay_doubles_with_each_look_in_vain(count, delta):
    delays = [IdlePolling().delay(count, random.Random(seed)) for seed in range(200)]

    assert 0.8 * delta <= min(delays) < 0.85 * delta
    assert min(60.0, 1.15 * delta) < max(delays) <= 1.2 * delta


@pytest.mark.parametrize("wrong", [{"minimum": -0.1}, {"maximum": 0.0}])
def test_a_delay_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        IdlePolling(**wrong)


def test_a_listener_that_found_something_looks_again_at_once():
    assert IdlePolling().delay(0, random.Random(1)) == 0.0


def test_a_queue_that_is_empty_for_long_is_asked_once_a_minute():
    assert IdlePolling().delay(20, random.Random(1)) == 60.0


def test_the_longest_delay_is_known_as_such():
    polling = IdlePolling(maximum=60.0)

    assert polling.is_longest(polling.delay(11, random.Random(1)))
    assert not polling.is_longest(polling.delay(8, random.Random(1)))
