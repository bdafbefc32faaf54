"""A store's own date goes on over a restart, whatever the wall clock did meanwhile."""

from datetime import UTC, datetime, timedelta

from gateway.domain.clocks.clock_note import BUILT, Boot, ClockNote, note_of, read_note, write_note
from gateway.domain.clocks.times import to_micros

SECOND = 10**6
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
NOW = to_micros(datetime(2026, 6, 1, tzinfo=UTC))
EPOCH = 100 * SECOND  # a machine without a battery, shortly after its boot


def own(note: ClockNote, wall: int, boot: Boot | None) -> int:
    """The own date of a store with that note that is opened at that date of the wall clock."""
    return wall - note.shift_at(wall, boot)


def test_a_clock_that_was_set_in_the_same_boot_while_no_process_ran_doesnt_move_the_own_date() -> (
    None
):
    note = note_of(EPOCH, 0, Boot("a", 60 * SECOND))

    assert own(note, NOW + HOUR, Boot("a", 60 * SECOND + HOUR)) == EPOCH + HOUR


def test_time_in_which_the_machine_slept_counts_while_no_process_ran() -> None:
    note = note_of(NOW, 0, Boot("a", 60 * SECOND))

    assert note.shift_at(NOW + 3 * DAY, Boot("a", 60 * SECOND + 3 * DAY)) == 0


def test_a_sleep_that_a_process_took_for_a_step_is_not_taken_back_by_the_next_one() -> None:
    after = note_of(NOW + 3 * DAY, 3 * DAY, Boot("a", 60 * SECOND + 3 * DAY))

    again = own(after, NOW + 3 * DAY + HOUR, Boot("a", 60 * SECOND + 3 * DAY + HOUR))

    assert again == NOW + HOUR


def test_a_step_of_less_than_a_day_is_believed() -> None:
    note = note_of(NOW, 0, Boot("a", 60 * SECOND))

    assert note.shift_at(NOW + 3 * HOUR, Boot("a", 60 * SECOND)) == 0


def test_a_step_that_a_process_saw_is_not_seen_again_by_the_next_one() -> None:
    after = note_of(NOW, NOW - EPOCH, Boot("a", 60 * SECOND))

    assert own(after, NOW + HOUR, Boot("a", 60 * SECOND + HOUR)) == EPOCH + HOUR


def test_after_another_boot_a_date_from_before_the_build_stands_still() -> None:
    for boot in (Boot("b", 60 * SECOND), None):
        note = note_of(EPOCH, 0, Boot("a", 60 * SECOND))
        shift = note.shift_at(NOW, boot)
        assert NOW - shift == EPOCH
        # and the next boot, whose clock is right again, is believed
        assert note_of(NOW, shift, boot).shift_at(NOW + DAY, None) == shift


def test_a_clock_that_is_wrong_after_the_boot_lets_nothing_live_for_years() -> None:
    note = note_of(NOW, 0, Boot("a", 60 * SECOND))

    assert own(note, EPOCH, Boot("b", 60 * SECOND)) == NOW


def test_after_another_boot_a_date_before_the_last_one_lets_nothing_live_for_years() -> None:
    ahead = 5000 * DAY
    note = note_of(NOW + ahead, ahead, Boot("a", 60 * SECOND))

    assert own(note, NOW + HOUR, Boot("b", 60 * SECOND)) == NOW


def test_after_another_boot_a_plausible_date_is_believed() -> None:
    note = note_of(NOW, 0, Boot("a", 60 * SECOND))

    assert note.shift_at(NOW + 30 * DAY, Boot("b", 0)) == 0
    assert note.shift_at(NOW + 30 * DAY, None) == 0


def test_the_build_that_wrote_a_date_judges_it() -> None:
    assert note_of(BUILT, 0, None).plausible
    assert not note_of(BUILT - 1, 0, None).plausible


def test_a_note_is_read_as_it_was_written() -> None:
    for note in (ClockNote(), note_of(NOW, -7, Boot("a", 5))):
        assert read_note(write_note(note)) == note
    assert read_note(b"") == ClockNote()
    assert timedelta(microseconds=BUILT) > timedelta(days=365 * 50)
