import random

import pytest

from gateway.brokers.amqp.options import AmqpNamespaceOptions, ServiceBusOptions
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


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("servicebus:", None),
        ("servicebus:Endpoint=sb://a/;SharedAccessKeyName=b", None),
        ("servicebus:Endpoint=sb://a/;SharedAccessKeyName=b;SharedAccessKey=c", None),
        ("servicebus:Endpoint=sb://a/", ServiceBusOptions(connection_string="Endpoint=sb://a/")),
        ("amqp://", None),
        ("amqp://user@a", None),
        ("amqp://user:secret@a", None),
        ("amqps://a/vhost", None),
        ("amqp://a", AmqpNamespaceOptions(password="secret")),
    ],
)
def test_what_does_not_fit_a_kind_over_amqp_is_refused_without_its_secrets(url, options):
    with pytest.raises(InvalidRequest) as caught:
        build(url, "one", AROUND, options)

    assert "secret" not in str(caught.value).replace("no secret in a URL", "")


def test_the_scheme_says_which_options_there_are():
    assert options_class("MEMORY:") is LocalOptions
    assert options_class("embedded:x") is EmbeddedOptions


@pytest.mark.parametrize("url", ["", "memory", "nosuch:secret", "memory:something", "embedded:"])
def test_a_url_that_names_no_namespace_is_refused_without_being_shown(url):
    with pytest.raises(InvalidRequest) as refused:
        build(url, "east", AROUND)

    assert "secret" not in str(refused.value)
