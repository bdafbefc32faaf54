"""Duplicate detection: the messages that count as duplicates, and the end of their window."""

from datetime import timedelta

from gateway.domain.entity import QueueProperties
from gateway.store.engine.enqueue import Duplicates
from gateway.store.engine.records import Incoming
from tests.store.engine.queue import NaiveSeenIds, at
from tests.store.engine.queue_content import doubtful

PROPERTIES = QueueProperties(
    requires_duplicate_detection=True, duplicate_detection_window=timedelta(seconds=60)
)


def messages(*ids: str | None) -> list[Incoming]:
    return [Incoming(content=None, size=1, message_id=each) for each in ids]


def kept(duplicates: Duplicates, *ids: str | None, seconds: float = 1) -> list[str | None]:
    numbered = list(enumerate(messages(*ids)))
    return [each.message_id for _, each in duplicates.sift(numbered, at(seconds))]


def test_a_duplicate_is_one_of_an_earlier_message_or_of_one_beside_it() -> None:
    duplicates = Duplicates(NaiveSeenIds())
    duplicates.remember(messages("old"), PROPERTIES, at(0))

    assert kept(duplicates, "a", "old", "a", None, None, "b") == ["a", None, None, "b"]


def test_after_its_window_an_id_is_new_again() -> None:
    duplicates = Duplicates(NaiveSeenIds())
    duplicates.remember(messages("a"), PROPERTIES, at(1))

    assert kept(duplicates, "a", seconds=60.9) == []
    assert kept(duplicates, "a", seconds=61) == ["a"]


def test_more_is_forgotten_than_comes_and_nothing_while_the_wall_clock_is_in_doubt() -> None:
    seen = NaiveSeenIds()
    duplicates = Duplicates(seen)
    duplicates.remember(messages(*map(str, range(10))), PROPERTIES, at(1))
    left = []
    for now in (doubtful(100), at(100), at(101)):
        duplicates.remember(messages(f"new {now.wall}"), PROPERTIES, now)
        left.append(sum(each.isdecimal() for each in seen.ids))

    assert left == [10, 7, 4]
