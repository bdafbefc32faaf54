"""`entities = "Config.json"`: the entities that a namespace must have, in the emulator's form."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import parse
from gateway.domain.plan import Plan

FILE = '{"UserConfig": {"Namespaces": [{"Name": "sb", "Queues": [%s]}]}}'
ORDERS = '{"Name": "orders", "Properties": {"MaxDeliveryCount": 3}}'


def plan(folder: Path, options: str) -> Plan:
    text = f"[namespaces.here]\nurl = 'memory:'\n{options}"
    return parse(text, source="x.toml", folder=folder, environ={}).config.namespaces["here"].plan


def problems(folder: Path, options: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        plan(folder, options)
    return caught.value.problems


def test_the_file_is_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(FILE % ORDERS)

    (queue,) = plan(tmp_path, 'entities = "Config.json"').queues

    assert (queue.path.name, queue.properties.max_delivery_count) == ("orders", 3)


def test_queues_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(FILE % ORDERS)

    found = plan(tmp_path, 'entities = "Config.json"\nqueues = ["Orders", "bills"]').queues

    assert [(queue.path.name, queue.properties.max_delivery_count) for queue in found] == [
        ("orders", 3),
        ("bills", 10),
    ]


def test_mistakes_are_named_with_their_path_and_limit(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(FILE % ORDERS.replace("3", "0"))

    (line,) = problems(tmp_path, 'entities = "Config.json"')

    assert line.startswith(
        "x.toml: namespaces.here.entities: Config.json: UserConfig.Namespaces[0].Queues[0]"
        ".Properties.MaxDeliveryCount: value: a number from 1 to 2147483647 expected"
    )


def test_mistakes_of_the_file_and_of_the_configuration_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text("{")

    found = problems(tmp_path, 'entities = "Config.json"\nqueues = ["a b"]')

    assert [line.split(": ")[1] for line in found] == [
        "namespaces.here.entities",
        "namespaces.here.queues[0]",
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, 'entities = "Config.json"')

    assert line.endswith("Config.json: No such file or directory")
