from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.clocks.lifetime import Stay, remaining
from gateway.domain.clocks.times import Now, to_micros
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Unwrapped
from gateway.domain.message import Message

TAKEN = datetime(2026, 11, 21, 12, tzinfo=UTC)
LIFE = timedelta(hours=2)
HOUR = 3600
DUE = 100


def after(seconds: float) -> datetime:
    return TAKEN + timedelta(seconds=seconds)


def diverted(*, ahead: float = 0, due: float | None = None, life: timedelta = LIFE) -> Unwrapped:
    """A message that a gateway has diverted whose clock is `ahead` seconds ahead."""
    scheduled = None if due is None else after(due)
    begins = after(ahead) if scheduled is None else max(after(ahead), scheduled)
    return Unwrapped(
        entity=EntityPath("orders"),
        message=Message(scheduled=scheduled),
        time_to_live=life,
        expires=begins + life,
        attempt="a1",
        origin="gateway",
    )


def now(seconds: float, before: float | None = None) -> Now:
    """The present by our clock; in doubt, with the date that it had before the step."""
    other = None if before is None else to_micros(after(before))
    return Now(to_micros(after(seconds)), 0.0, before=other)


def lived(unwrapped: Unwrapped, now: Now, stay: Stay | None = None) -> float:
    left = remaining(unwrapped, now, stay)
    assert left is not None
    return (LIFE - left).total_seconds()


def stay(enqueued: float, lasted: float) -> Stay:
    return Stay(after(enqueued), timedelta(seconds=lasted))


@pytest.mark.parametrize("waited", [0, 60, 7200, 8000])
def test_the_time_to_live_keeps_running_on_the_backlog(waited: int) -> None:
    assert lived(diverted(), now(waited)) == waited


@pytest.mark.parametrize("years", [7, 56])
def test_a_gateway_whose_clock_began_long_ago_shortens_no_life(years: int) -> None:
    ahead = -years * 365 * 24 * HOUR

    assert lived(diverted(ahead=ahead), now(60)) == 0
    assert lived(diverted(ahead=ahead), now(60), stay(5, 50)) == 50
    assert lived(diverted(ahead=ahead, due=DUE), now(150)) == 50  # its sender's own date


@pytest.mark.parametrize(("waited", "expected"), [(0, 0), (60, 0), (100, 0), (150, 50)])
def test_a_scheduled_message_begins_to_live_at_its_date(waited: int, expected: int) -> None:
    assert lived(diverted(due=DUE), now(waited)) == expected
    assert lived(diverted(due=DUE), now(waited), stay(0, waited)) == expected


def test_nothing_lives_longer_than_it_was_sent_to() -> None:
    assert lived(diverted(ahead=HOUR), now(0)) == 0
    assert lived(diverted(), now(-HOUR), stay(0, -HOUR)) == 0


def test_a_message_without_an_end_of_its_own_lives_as_long_as_it_was_sent_to() -> None:
    endless = Unwrapped(
        entity=EntityPath("orders"),
        message=Message(),
        time_to_live=None,
        expires=None,
        attempt="",
        origin="",
    )

    assert remaining(endless, now(HOUR)) is None


def test_where_the_clocks_agree_the_envelopes_date_counts() -> None:
    """The backlog reports whole seconds, and not the time before it had the message."""
    assert lived(diverted(), now(130), stay(30, 99)) == 130


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
@pytest.mark.parametrize("due", [None, DUE])
def test_a_gateway_that_diverted_by_a_wrong_clock_is_found_out_by_the_backlog(
    ahead: int, due: int | None
) -> None:
    assert lived(diverted(ahead=ahead, due=due), now(600), stay(0, 600)) == 600 - (due or 0)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_our_wrong_clock_is_found_out_by_the_backlog(ahead: int) -> None:
    assert lived(diverted(), now(600 + ahead), stay(0, 600)) == 600


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_step_of_the_backlogs_clock_is_found_out_by_ours(ahead: int) -> None:
    assert lived(diverted(), now(600), stay(0, 600 + ahead)) == 600
    assert lived(diverted(), now(600), stay(ahead, 600 - ahead)) == 600


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_clock_of_the_backlog_that_is_always_wrong_does_no_harm(ahead: int) -> None:
    assert lived(diverted(), now(600), stay(ahead, 600)) == 600


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_step_of_our_clock_is_in_doubt(ahead: int) -> None:
    assert lived(diverted(), now(600 + ahead, before=600)) == 600


@pytest.mark.parametrize("seconds", [HOUR, 2 * HOUR])
def test_a_step_that_put_our_clock_right_is_in_doubt_and_costs_no_life(seconds: int) -> None:
    assert lived(diverted(), now(seconds, before=60)) == 60


def test_a_message_of_which_all_say_that_it_is_over_has_expired() -> None:
    left = remaining(diverted(), now(3 * HOUR, before=4 * HOUR), stay(0, 3 * HOUR))

    assert left == timedelta(hours=-1)


def test_an_expiry_without_a_time_to_live_counts_as_it_is() -> None:
    unwrapped = Unwrapped(
        entity=EntityPath("orders"),
        message=Message(),
        time_to_live=None,
        expires=after(100),
        attempt="a1",
        origin="gateway",
    )

    assert remaining(unwrapped, now(HOUR, before=40)) == timedelta(seconds=60)


# A gateway's clock that is less than a minute behind can't be told from a send that waited.
ERRORS = st.one_of(st.floats(-3 * HOUR, -100.0), st.floats(0.0, 3 * HOUR))


@given(
    st.sampled_from(["gateway", "syphon", "backlog always", "backlog set", "backlog set back"]),
    ERRORS,
    st.floats(0, 30),
    st.floats(0, 3 * HOUR),
    st.one_of(st.none(), st.floats(0, HOUR)),
)
def test_no_single_clock_takes_life_away(
    whose: str, ahead: float, waited: float, stayed: float, due: float | None
) -> None:
    """The gateway has it for `waited`, then the backlog for `stayed`."""
    gateway = ahead if whose == "gateway" else 0.0
    syphon = ahead if whose == "syphon" else 0.0
    came = ahead if whose in {"backlog always", "backlog set back"} else 0.0
    handed_out = ahead if whose in {"backlog always", "backlog set"} else 0.0
    whole = waited + stayed

    found = lived(
        diverted(ahead=gateway, due=due),
        now(whole + syphon),
        stay(waited + came, stayed + handed_out - came),
    )

    assert 0 <= found <= max(0.0, whole - (due or 0.0)) + 5.001
