"""A queue of Azure Storage keeps some of its properties in its metadata."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import storage_queue
from gateway.domain.entity import QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.wire.storage_queue.metadata import (
    UNLIMITED,
    Notes,
    build_metadata,
    parse_metadata,
    read_notes,
    write_notes,
)
from gateway.wire.storage_queue.operations import StoredPolicy

TEAM = {"team": "blue", "Floor_2": "x y"}
NOTES = (
    Notes(metadata=TEAM),
    Notes(metadata={"town": "K\u00f6ln", **TEAM}),
    Notes(metadata=TEAM, policies=(StoredPolicy(id="p"),)),
    Notes(metadata=TEAM, text="mine"),
)
properties = st.builds(
    QueueProperties,
    max_size_in_megabytes=st.just(storage_queue.UNLIMITED.max_size_in_megabytes),
    lock_duration=st.integers(1, 604800).map(lambda seconds: timedelta(seconds=seconds)),
    max_delivery_count=st.integers(1, UNLIMITED),
    user_metadata=st.none()
    | st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
    | st.sampled_from([write_notes(notes) for notes in NOTES]),
)


@given(properties)
def test_properties_survive_a_round_trip(properties: QueueProperties) -> None:
    metadata = build_metadata(properties)

    assert parse_metadata(metadata) == properties
    shouted = {
        re.sub("^pairgate_.*", lambda own: own[0].upper(), name): value
        for name, value in metadata.items()
    }
    assert parse_metadata(shouted) == properties
    assert all(value.isascii() and value.isprintable() for value in metadata.values())


def test_a_queue_of_somebody_else_s_locks_for_a_minute_and_gives_nothing_up() -> None:
    found = parse_metadata({})

    assert found == storage_queue.UNLIMITED


def test_metadata_of_storage_clients_is_the_service_s_own() -> None:
    text = write_notes(Notes(metadata=TEAM, policies=(StoredPolicy(id="p"),)))

    built = build_metadata(QueueProperties(user_metadata=text))

    assert TEAM.items() <= built.items()
    assert read_notes(parse_metadata(TEAM).user_metadata).metadata == TEAM


def test_metadata_with_a_name_of_pairgate_s_is_refused() -> None:
    text = write_notes(Notes(metadata={"Pairgate_lock_seconds": "1"}))

    with pytest.raises(InvalidRequest, match="Pairgate_lock_seconds: names that begin with"):
        build_metadata(QueueProperties(user_metadata=text))


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "1.5", "9" * 30, "\u0663"])
def test_metadata_that_cannot_be_read_is_as_if_it_were_not_there(value: str) -> None:
    names = ("pairgate_lock_seconds", "pairgate_max_delivery_count")

    assert parse_metadata(dict.fromkeys(names, value)) == parse_metadata({})
    assert parse_metadata({"pairgate_user_metadata": "-"}) == parse_metadata({})


def test_a_lock_has_whole_seconds_and_a_limit() -> None:
    assert build_metadata(QueueProperties(lock_duration=timedelta(seconds=0.4))) == {
        "pairgate_lock_seconds": "1",
        "pairgate_max_delivery_count": "10",
    }
    with pytest.raises(InvalidRequest, match="lock_duration: 1 to 604800"):
        build_metadata(QueueProperties(lock_duration=timedelta(days=8)))
