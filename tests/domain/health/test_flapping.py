import pytest

from gateway.domain.health.flapping import CALM, WINDOW, Damping


def flapped(times):
    damping, now = CALM, 0.0
    for _ in range(times):
        damping, now = damping.after_return(now).after_failure(now + 1.0), now + 1.0
    return damping


@pytest.mark.parametrize(
    ("times", "successes", "proof"),
    [(0, 2, 0), (1, 4, 40), (2, 8, 80), (3, 16, 160), (4, 32, 300), (5, 32, 300), (9, 32, 300)],
)
def test_each_return_that_does_not_last_doubles_what_the_next_one_needs(times, successes, proof):
    damping = flapped(times)

    assert damping.successes(2) == successes
    assert damping.proof == proof


def test_options_that_ask_for_more_than_the_bound_are_heeded():
    assert flapped(3).successes(50) == 50


def test_a_return_that_lasts_is_no_flapping():
    assert CALM.after_return(0.0).after_failure(WINDOW) == CALM


def test_each_five_minutes_in_good_health_take_one_doubling_back():
    damping = flapped(3).after_return(1000.0)

    levels = [damping.after_failure(1000.0 + s).level for s in (299.0, 300.0, 600.0, 900.0, 9000.0)]

    assert levels == [4, 2, 1, 0, 0]
    assert [damping.is_over(1000.0 + seconds) for seconds in (899.0, 900.0)] == [False, True]


def test_a_send_that_succeeds_before_the_failover_is_no_return():
    damping = flapped(1).after_recovery(10.0).after_failure(11.0)

    assert damping == Damping(level=1)
    assert CALM.after_recovery(10.0) == CALM


def test_an_entity_in_trouble_is_remembered_when_it_flapped():
    assert CALM.is_over(0.0)
    assert not flapped(1).is_over(1e9)
    assert not CALM.after_return(0.0).is_over(WINDOW - 1.0)
    assert CALM.after_return(0.0).is_over(WINDOW)


def test_a_recovery_before_the_failover_is_in_good_health_and_on_no_trial():
    returned = flapped(2).after_return(10.0)

    assert returned.after_recovery(20.0) == Damping(level=2, well_since=20.0)


def test_a_time_in_good_health_is_moved_to_the_clock_of_another_process():
    returned = flapped(2).after_return(10.0)

    assert returned.shifted(5.0) == flapped(2).after_return(15.0)
    assert flapped(2).shifted(5.0) == flapped(2)


def test_a_clock_that_began_long_ago_makes_no_history_shorter():
    for damping in (CALM.after_return(1000.0), flapped(1).after_return(1000.0)):
        assert [damping.is_over(now) for now in (1299.9, 1300.0)] == [False, True]


def test_flaps_are_counted_up_to_five():
    assert flapped(9).level == 5


def test_an_entity_that_never_returned_is_on_no_trial():
    assert not CALM.on_trial
    assert Damping(level=1, well_since=0.0).after_failure(1.0).level == 1


@pytest.mark.parametrize("damping", [CALM, Damping(level=2)])
def test_a_failure_in_trouble_changes_no_history(damping):
    assert damping.after_failure(5.0) == damping
