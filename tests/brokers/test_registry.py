import random

import pytest

from gateway.brokers.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.brokers.local import LocalOptions
from gateway.brokers.memory import MemoryBroker
from gateway.brokers.registry import Surroundings, build, options_class
from gateway.domain.errors import InvalidRequest
from gateway.testing.clocks import VirtualClock
from tests.brokers.embedded.stores import ORDERS, Events, numbered

AROUND = Surroundings(clock=VirtualClock(), rng=random.Random(0), observer=Events())


async def test_a_url_gives_an_adapter_that_works_inside_its_block(tmp_path):
    options = EmbeddedOptions(create_missing=True)
    async with build(f"embedded:{tmp_path}/var/east.db", "east", AROUND, options) as broker:
        await broker.send(ORDERS, numbered(1))

        assert isinstance(broker, EmbeddedBroker)
    assert (tmp_path / "var" / "east.db").exists()


async def test_each_memory_namespace_has_its_own_store():
    options = LocalOptions(create_missing=True)
    async with (
        build("memory:", "one", AROUND, options) as one,
        build("memory:", "two", AROUND, options) as two,
    ):
        await one.send(ORDERS, numbered(1))

        assert isinstance(one, MemoryBroker)
        assert await two.list_queues() == []


def test_the_scheme_says_which_options_there_are():
    assert options_class("MEMORY:") is LocalOptions
    assert options_class("embedded:x") is EmbeddedOptions


@pytest.mark.parametrize("url", ["", "memory", "nosuch:secret", "memory:something", "embedded:"])
def test_a_url_that_names_no_namespace_is_refused_without_being_shown(url):
    with pytest.raises(InvalidRequest) as refused:
        build(url, "east", AROUND)

    assert "secret" not in str(refused.value)
