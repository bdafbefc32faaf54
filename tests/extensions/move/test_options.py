"""A `[move]` that can't work is refused, with the key that is wrong."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import parse
from gateway.extensions.move.options import MOVE

PAIR = """
[namespaces.east]
url = "embedded:east.db"

[namespaces.west]
url = "embedded:west.db"

[namespaces.north]
url = "embedded:north.db"

[pairing]
primary = "east"
secondary = "west"
"""


def problem_of(text: str, pair: str = PAIR) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(pair + text, source="file", folder=Path("/"), environ={})
    return str(caught.value)


def test_the_other_namespace_is_one_that_may_get_the_entities() -> None:
    assert "move.to: another namespace than 'east' expected" in problem_of('[move]\nto = "east"')
    assert "move.to: 'west' is the secondary" in problem_of('[move]\nto = "west"')
    assert "move.to: there is no namespace 'south'" in problem_of('[move]\nto = "south"')


def test_a_pattern_that_no_entity_can_match_is_refused() -> None:
    text = '[move]\nto = "north"\nentities = ["a b"]'

    assert "move.entities: target 'a b'" in problem_of(text)


def test_an_endpoint_that_leads_to_the_primary_itself_is_refused() -> None:
    text = '[move]\nto = "north"\n[[endpoints]]\nprotocol = "rabbitmq"\nbind = "127.0.0.1:0"'
    wire = PAIR.replace("embedded:east.db", "rabbitmq://gateway@east.example.net")

    assert "endpoints[0].protocol: rabbitmq leads its clients" in problem_of(text, wire)
    parse(PAIR + text, source="", folder=Path("/"), environ={})  # it's a broker by itself


def test_the_other_namespace_is_opened_beside_the_primary() -> None:
    config = parse(PAIR + '[move]\nto = "north"', source="", folder=Path("/"), environ={}).config
    options = config.of(MOVE)

    assert options is not None
    assert (options.entities, config.further_namespaces) == (("*",), ("north",))
