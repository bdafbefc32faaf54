"""Dead letters are counted in groups, and the parts of a redrive add up."""

from datetime import UTC, datetime

import attrs

from gateway.domain.message import Message
from gateway.extensions.redrive.order import OTHERS, Grouping, Letter, Redriven, Selection

LETTER = Letter(
    reason="EntityNotFound",
    entity="orders",
    enqueued=None,
    message=Message(message_id="m1"),
    unwrapped=None,
    problem="",
)


def letter_for(entity: str) -> Letter:
    return attrs.evolve(LETTER, entity=entity)


def test_dead_letters_of_very_many_entities_are_counted_without_their_names() -> None:
    grouping = Grouping(Selection(), most=2)
    for entity in ("a", "b", "c", "d", "a"):
        grouping.add(letter_for(entity))

    assert {group.entity: group.messages for group in grouping.groups()} == {
        "a": 2,
        OTHERS: 2,
        "b": 1,
    }


def test_the_largest_group_is_the_first() -> None:
    grouping = Grouping(Selection())
    for entity in ("a", "b", "b"):
        grouping.add(letter_for(entity))

    assert [group.entity for group in grouping.groups()] == ["b", "a"]


def test_of_an_unknown_date_nothing_is_meant_where_dates_have_a_limit() -> None:
    date = datetime(2026, 1, 1, tzinfo=UTC)

    assert Selection().takes(LETTER)
    assert not Selection(before=date).takes(LETTER)
    assert not Selection(after=date).takes(LETTER)


def test_of_an_unknown_entity_nothing_is_meant_where_entities_are_named() -> None:
    nobodys = attrs.evolve(LETTER, entity=None)

    assert Selection().takes(nobodys)
    assert not Selection(entities=("*",)).takes(nobodys)


def test_parts_of_a_redrive_add_up_and_tell_each_problem_once() -> None:
    first = Redriven(moved=1, left=1, problems=("a", "b"))
    second = Redriven(moved=2, problems=("b", "c"), is_outage=True)

    assert first + second == Redriven(moved=3, left=1, problems=("a", "b", "c"), is_outage=True)


def test_copies_of_a_message_without_an_envelope_are_told_by_its_id() -> None:
    assert LETTER.identity == "m1"
