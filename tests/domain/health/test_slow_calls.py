import pytest

from gateway.domain.health.reachability import FEWEST, LAST, WITHIN, SlowCalls


def calls(*slow, rate=0.5, apart=1.0):
    """Note these sends; return after each whether too many were slow."""
    began = 1000.0
    window = SlowCalls(rate, began)
    return [window.record(began + number * apart, slow=each) for number, each in enumerate(slow)]


def test_too_many_are_slow_when_their_share_reaches_the_rate():
    assert calls(False, False, False, True, True, True)[-2:] == [False, True]


def test_of_fewer_than_five_sends_nothing_is_said():
    assert calls(*[True] * FEWEST) == [False] * (FEWEST - 1) + [True]


def test_a_send_that_was_not_slow_never_makes_it_too_many():
    assert calls(*[True] * 9, False)[-1] is False


def test_only_the_last_twenty_count():
    assert calls(*[False] * 100, *[True] * (LAST // 2), apart=0.1)[-1] is True


def test_only_those_of_the_last_half_minute_count():
    assert calls(*[True] * 10, apart=WITHIN / 4 + 0.1)[-1] is False


@pytest.mark.parametrize(("rate", "too_many"), [(0.5, True), (0.6, False)])
def test_the_rate_is_an_option(rate, too_many):
    assert calls(False, True, False, True, False, True, rate=rate)[-1] is too_many


def test_a_slow_period_is_over_when_no_slow_send_is_left():
    window = SlowCalls(0.5, 0.0)
    window.record(1.0, slow=True)

    assert not window.is_over(WITHIN)
    assert window.is_over(WITHIN + 1.1)


def test_a_slow_period_waits_for_the_answer_of_the_send_that_began_it():
    assert not SlowCalls(0.5, 0.0).is_over(WITHIN)


def test_a_window_is_as_old_as_its_begin():
    window = SlowCalls(0.5, 100.0)

    assert [window.is_over(100.0 + seconds) for seconds in (WITHIN, WITHIN + 0.1)] == [False, True]


def test_a_send_counts_for_exactly_half_a_minute():
    window = SlowCalls(0.5, 0.0)
    window.record(0.0, slow=True)

    assert [window.record(now, slow=True) for now in (10.0, 20.0, WITHIN, WITHIN)][-1]


def test_a_send_counts_no_longer_than_half_a_minute():
    window = SlowCalls(0.5, 0.0)
    window.record(0.0, slow=True)

    assert [window.is_over(now) for now in (30.0, 30.1)] == [False, True]
