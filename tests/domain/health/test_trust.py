import pytest

from gateway.domain.health.trust import SILENCE, YOUNG, Trust

OLD = 100.0  # seconds after the connection was opened


@pytest.fixture
def trust():
    return Trust(opened=0.0)


def test_a_failure_without_an_answer_since_its_start_shows_a_bad_connection(trust):
    trust.answered(OLD - 1.0)

    assert trust.failed(OLD, OLD)


def test_an_answer_since_the_start_of_a_failed_request_shows_a_good_connection(trust):
    trust.answered(OLD + 1.0)

    assert not trust.failed(OLD, OLD + 2.0)
    assert not trust.given_up(OLD, OLD + 60.0)


def test_a_young_connection_is_kept_so_that_new_ones_do_not_follow_each_other(trust):
    assert not trust.failed(0.0, YOUNG - 0.01)
    assert trust.failed(0.0, YOUNG)


@pytest.mark.parametrize(("waited", "bad"), [(SILENCE - 0.01, False), (SILENCE, True)])
def test_a_request_that_was_given_up_counts_once_it_had_time_for_its_answer(trust, waited, bad):
    assert trust.given_up(OLD, OLD + waited) is bad


def test_requests_given_up_one_after_the_other_count_together(trust):
    soon = trust.given_up(OLD, OLD + 0.5)

    assert not soon
    assert trust.given_up(OLD + SILENCE - 0.5, OLD + SILENCE)


def test_an_answer_ends_the_silence_of_requests_that_were_given_up(trust):
    trust.given_up(OLD, OLD + 0.5)
    trust.answered(OLD + 1.0)

    assert not trust.given_up(OLD + SILENCE - 0.5, OLD + SILENCE)


def test_the_last_answer_is_told(trust):
    never = trust.last_answer
    trust.answered(OLD)

    assert (never, trust.last_answer) == (float("-inf"), OLD)


def test_an_answer_at_the_start_of_a_request_is_one_since_then(trust):
    trust.answered(OLD)

    assert not trust.failed(OLD, OLD + 1.0)
    assert not trust.given_up(OLD, OLD + 60.0)


def test_the_age_of_a_connection_counts_from_its_opening():
    trust = Trust(opened=OLD)

    assert not trust.failed(OLD, OLD + YOUNG - 0.01)
    assert trust.failed(OLD, OLD + YOUNG)


def test_silence_is_two_seconds_and_youth_one():
    assert (SILENCE, YOUNG) == (2.0, 1.0)
