"""Rates per second."""

from gateway.domain.health.distribution import Rate


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    rate = Rate()
    rate.record(30, 100.2)
    rate.record(20, 100.9)
    rate.record(50, 104.0)

    assert rate.read(104.0) == 10.0
    assert rate.read(109.9) == 10.0
    assert rate.read(110.0) == 5.0
    assert rate.read(114.0) == 0.0


def test_nothing_is_nothing() -> None:
    assert Rate().read(5.0) == 0.0
