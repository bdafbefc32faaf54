"""A section that no module of the package names is in JSON, sums, metrics and advice."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pytest
from attrs import field

from gateway.commands.status_view import summary
from gateway.domain.health.problems import Problem
from gateway.domain.status.figures import ALL, EACH, LEAST, SUM, counter, gauge, label, merged
from gateway.domain.status.process import Status
from gateway.domain.status.sections import Section
from gateway.frontends.admin.openapi import description
from gateway.telemetry.metrics import exposition
from gateway.wire.pairgate.advice import problems_of
from gateway.wire.pairgate.status import build_status, parse_status
from tests.wire.pairgate.status import OUTAGE, WELL


@attrs.frozen(kw_only=True)
class Hall:
    """A row of the section."""

    name: str = field(metadata=label("hall"))
    books: int | None = field(metadata=SUM | gauge("test_books", "Books in a hall."))


@attrs.frozen(kw_only=True)
class Library:
    """A section of the test's own."""

    lent: int = field(metadata=counter("test_lent", "Books that were lent."))
    readers: int | None = field(metadata=SUM | gauge("test_readers", "Readers now."))
    free: Mapping[str, int] = field(
        factory=dict, metadata=LEAST | gauge("test_free", "Free seats.", labels=("room",))
    )
    halls: tuple[Hall, ...] = field(default=(), metadata=ALL)
    city: str = ""


EMPTY = Problem(text="the library is empty", remedy="open it")


def _problems(library: Library | None) -> list[Problem]:
    return [EMPTY] if library and library.readers == 0 else []


LIBRARY: Final = Section[Library | None](
    path="pair.library",
    kind=Library | None,
    missing=None,
    metadata=EACH,
    problems=_problems,
    fact=lambda library: "" if library is None else f"lent: {library.lent}",
)


def library(lent: int, readers: int | None, *, books: int = 1) -> Status:
    value = Library(
        lent=lent,
        readers=readers,
        free={"east": readers or 0},
        halls=(Hall(name=f"hall {books}", books=books), Hall(name="all", books=books)),
        city="x",
    )
    return attrs.evolve(OUTAGE, sections={LIBRARY: value})


def samples(status: Status) -> list[str]:
    return [line for line in exposition(status).decode().splitlines() if line.startswith("test_")]


def test_a_figure_is_in_the_json_at_its_place_and_is_read_again() -> None:
    status = library(3, None)
    written = build_status(status)

    assert json.loads(written)["pair"]["library"] == {
        "lent": 3,
        "readers": None,
        "free": {"east": 0},
        "halls": [{"name": "hall 1", "books": 1}, {"name": "all", "books": 1}],
        "city": "x",
    }
    assert parse_status(written, [LIBRARY]) == status
    assert parse_status(written).of(LIBRARY) is None
    assert parse_status(build_status(WELL), [LIBRARY]) == WELL


def test_the_figures_of_processes_are_added_each_by_its_rule() -> None:
    total = merged(library(1, 4), [library(2, 5, books=2)], [library(30, 60, books=3)])
    assert (found := total.of(LIBRARY)) is not None

    assert (found.lent, found.readers, found.free) == (33, 9, {"east": 4})
    assert {each.name: each.books for each in found.halls[:3]} == {
        "hall 1": 1,
        "all": 3,
        "hall 2": 2,
    }


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_sum_with_an_unknown_part_is_unknown(unknown: int) -> None:
    readers: list[int | None] = [4, 5]
    readers[unknown] = None
    total = merged(library(1, readers[0]), [library(2, readers[1])])
    assert (found := total.of(LIBRARY)) is not None

    assert (found.lent, found.readers) == (3, None)
    assert not any("test_readers" in each for each in samples(total))


def test_a_process_without_the_section_adds_nothing() -> None:
    assert merged(library(1, 4), [OUTAGE]).of(LIBRARY) == library(1, 4).of(LIBRARY)


def test_a_figure_is_a_metric_with_the_labels_of_its_row() -> None:
    assert samples(library(3, 7)) == [
        "test_lent_total 3.0",
        "test_readers 7.0",
        'test_free{room="east"} 7.0',
        'test_books{hall="hall 1"} 1.0',
        'test_books{hall="all"} 1.0',
    ]
    assert samples(attrs.evolve(OUTAGE, sections={LIBRARY: None})) == []


def test_the_words_of_a_section_are_those_of_the_status() -> None:
    assert EMPTY in problems_of(library(1, 0))
    assert summary(library(7, 1)).endswith("; lent: 7")


def test_the_description_of_the_endpoint_has_the_section() -> None:
    schemas: Mapping[str, Any] = description((), (LIBRARY,))["components"]["schemas"]

    assert schemas["PairStatus"]["properties"]["library"]["anyOf"][0] == {
        "$ref": "#/components/schemas/Library"
    }
    assert "library" in schemas["PairStatus"]["required"]
    assert set(schemas["Library"]["properties"]) == {"lent", "readers", "free", "halls", "city"}
