"""The figures of /scale, both ways."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.wire.pairgate.scale import EntityFigures, build_figures, parse_figures

figures = st.builds(
    EntityFigures,
    entity=st.text(min_size=1, max_size=50),
    status=st.sampled_from(["Active", "Disabled"]),
    depth=st.none() | st.integers(0, 2**63),
    age=st.none() | st.floats(0.0, 1e9),
)


@given(figures)
def test_a_built_answer_is_read_again(each: EntityFigures) -> None:
    assert parse_figures(json.dumps(build_figures(each)).encode()) == each


def test_a_figure_that_nobody_can_tell_is_missing() -> None:
    told = build_figures(EntityFigures(entity="orders", status="Active", depth=None, age=None))

    assert told == {"entity": "orders", "status": "Active"}


def test_fields_that_are_not_known_are_passed_over() -> None:
    read = parse_figures(b'{"entity": "orders", "status": "Active", "depth": 1, "new": 2}')

    assert read == EntityFigures(entity="orders", status="Active", depth=1, age=None)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "no JSON",
        '{"entity": "orders"}',
        '{"entity": "orders", "status": "Active", "depth": -1}',
        '{"entity": "orders", "status": "Active", "depth": true}',
        '{"entity": "orders", "status": "Active", "depth": 1.5}',
        '{"entity": "orders", "status": "Active", "age_seconds": -1}',
        '{"entity": "orders", "status": "Active", "age_seconds": "old"}',
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="figures"):
        parse_figures(text.encode())
