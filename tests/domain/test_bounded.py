"""Bounded memories: never above their bound, and the oldest goes first."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.bounded import LONGEST_REMEMBERED, Bounded, remembered


def filled(most, *keys, renews=False):
    bounded = Bounded(most, renews=renews)
    for key in keys:
        bounded[key] = key.upper()
    return bounded


def test_one_too_many_drops_the_oldest():
    assert list(filled(2, "a", "b", "c")) == ["b", "c"]


def test_an_entry_that_is_set_again_keeps_its_age():
    assert list(filled(2, "a", "b", "a", "c")) == ["b", "c"]


def test_with_renews_an_entry_that_is_set_again_is_the_newest():
    assert list(filled(2, "a", "b", "a", "c", renews=True)) == ["a", "c"]


def test_reading_changes_nothing():
    bounded = filled(2, "a", "b")
    assert (bounded["a"], bounded.get("a"), "a" in bounded) == ("A", "A", True)

    bounded["c"] = "C"

    assert list(bounded) == ["b", "c"]


def test_a_reader_may_keep_what_is_used():
    bounded = filled(2, "a", "b")
    bounded.move_to_end("a")

    bounded["c"] = "C"

    assert list(bounded) == ["a", "c"]


def test_room_that_was_made_is_used():
    bounded = filled(2, "a", "b")
    del bounded["a"]

    bounded["c"] = "C"

    assert list(bounded) == ["b", "c"]


def test_no_way_in_goes_past_the_bound():
    bounded = filled(2, "a", "b")

    bounded.update({"c": "C", "d": "D"})
    assert list(bounded) == ["c", "d"]
    assert bounded.setdefault("e", "E") == "E"
    assert list(bounded) == ["d", "e"]
    assert bounded.setdefault("d", "other") == "D"
    bounded |= {"f": "F"}
    assert list(bounded) == ["e", "f"]


steps = st.lists(st.tuples(st.sampled_from("spd"), st.integers(0, 6)), max_size=40)


@given(most=st.integers(1, 4), renews=st.booleans(), steps=steps)
def test_a_bounded_dictionary_keeps_the_newest(most, renews, steps):
    bounded, plain = Bounded(most, renews=renews), OrderedDict()
    for number, (step, key) in enumerate(steps):
        if step == "s":
            if renews:
                plain.pop(key, None)
            bounded[key] = plain[key] = number
            while len(plain) > most:
                del plain[next(iter(plain))]
        elif step == "p":
            assert bounded.pop(key, None) == plain.pop(key, None)
        elif key in plain:
            del bounded[key], plain[key]
        assert list(bounded.items()) == list(plain.items())


def test_results_of_keys_up_to_a_length_are_remembered():
    calls = []

    @remembered(2)
    def length(key, factor):
        calls.append(key)
        return len(key) * factor

    shortest, longest = "k", "k" * LONGEST_REMEMBERED
    for key in (shortest, longest, longest + "k"):
        assert length(key, 2) == length(key, 2) == 2 * len(key)

    assert calls == [shortest, longest, longest + "k", longest + "k"]
