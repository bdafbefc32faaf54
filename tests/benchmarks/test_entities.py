"""The benchmark of many entities measures gateways that have them."""

from pathlib import Path

import pytest

from benchmarks.entities import Report, Start, start


@pytest.mark.slow
async def test_a_gateway_answers_with_all_of_its_entities(tmp_path: Path) -> None:
    found = await start(tmp_path, 20)

    assert found.entities == 20
    assert min(found.processor, found.seconds) > 0
    assert found.resident > 1024 * 1024


def test_an_entity_costs_what_many_take_more_than_a_few() -> None:
    few = Start(entities=10, seconds=1.0, processor=1.0, resident=1_000_000)
    many = Start(entities=1010, seconds=1.0, processor=1.0, resident=3_000_000)

    found = Report({}, [few, many])

    assert found.each == 2000
    assert [target.reached for target in found.targets] == [True, False]
