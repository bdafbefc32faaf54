import pytest

from gateway.domain import errors
from gateway.domain.errors import BrokerError, Busy, Outcome, OutcomeUnknown, Unavailable

ALL = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, BrokerError)
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_only_what_says_nothing_of_the_message_counts_as_an_outage(error):
    assert error.counts_as_outage == issubclass(error, Unavailable | OutcomeUnknown)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_only_silence_after_the_hand_over_is_unknown(error):
    expected = Outcome.UNKNOWN if issubclass(error, OutcomeUnknown) else Outcome.NOT_SENT

    assert error.outcome is expected


def test_outcomes_are_called_as_in_the_answers_of_the_gateway():
    assert [each.value for each in Outcome] == ["not-sent", "unknown"]


def test_a_busy_broker_that_names_no_pause_gets_ten_seconds():
    assert Busy().retry_after == 10.0
    assert Busy(retry_after=2.0).retry_after == 2.0
    assert str(Busy("later")) == "later"
