import pytest

from gateway.domain.backoff import Backoff, jittered
from tests.domain.backoff import MIDDLE, Drawn


@pytest.mark.parametrize(("failures", "delay"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 5.0)])
def test_a_delay_doubles_with_each_failure_up_to_the_cap(failures, delay):
    assert Backoff(first=0.5, cap=5.0).delay(failures, MIDDLE) == delay


def test_no_number_of_failures_is_too_large():
    assert Backoff(first=1e-9, cap=60.0).delay(10**6, MIDDLE) == 60.0


def test_a_delay_grows_for_as_long_as_there_is_a_cap_to_reach():
    assert Backoff(first=1.0, cap=2.0**70).delay(64, MIDDLE) == 2.0**63
    assert Backoff(first=1.0, cap=2.0**70).delay(65, MIDDLE) == 2.0**63


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, 8.0), (0.25, 9.0), (0.5, 10.0), (1.0, 12.0)])
def test_jitter_is_a_share_of_the_delay_to_either_side(drawn, delay):
    assert jittered(10.0, 0.2, Drawn(drawn)) == pytest.approx(delay)


def test_the_cap_bounds_the_delay_before_the_jitter():
    backoff = Backoff(first=1.0, cap=10.0, jitter=0.5)

    assert backoff.delay(9, Drawn(1.0)) == pytest.approx(15.0)


def test_the_usual_delays_are_a_second_to_a_minute_give_or_take_a_fifth():
    assert Backoff() == Backoff(first=1.0, cap=60.0, jitter=0.2)


@pytest.mark.parametrize(
    "wrong", [{"first": 0}, {"first": 61}, {"cap": 0}, {"jitter": -0.1}, {"jitter": 1.0}], ids=str
)
def test_a_backoff_without_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)


@pytest.mark.parametrize(
    "least", [{"first": 0.01}, {"first": 0.01, "cap": 0.01}, {"jitter": 0}], ids=str
)
def test_the_least_that_has_sense_is_taken(least):
    assert Backoff(**least)
