import random

import pytest

from gateway.brokers.amqp.options import AmqpNamespaceOptions, ServiceBusOptions
from gateway.brokers.entra.options import CredentialKind, CredentialOptions
from gateway.brokers.servicebus.broker import ServiceBusRestOptions
from gateway.brokers.storage_queue.broker import StorageQueueBroker
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.config.kinds import BrokerDependencies, build, cannot, options_class
from gateway.domain.errors import InvalidRequest
from gateway.store.embedded.broker import EmbeddedBroker, EmbeddedOptions
from gateway.store.local.broker import LocalOptions
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.store.embedded.stores import ORDERS, Events, numbered

IDENTITY = CredentialOptions(kind=CredentialKind.MANAGED_IDENTITY)
DEPENDENCIES = BrokerDependencies(clock=VirtualClock(), rng=random.Random(0), observer=Events())


async def test_a_url_gives_an_adapter_that_works_inside_its_block(tmp_path):
    options = EmbeddedOptions(create_missing=True)
    async with build(f"embedded:{tmp_path}/var/east.db", "east", DEPENDENCIES, options) as broker:
        await broker.send(ORDERS, numbered(1))

        assert isinstance(broker, EmbeddedBroker)
    assert (tmp_path / "var" / "east.db").exists()


async def test_each_memory_namespace_has_its_own_store():
    options = LocalOptions(create_missing=True)
    async with (
        build("memory:", "one", DEPENDENCIES, options) as one,
        build("memory:", "two", DEPENDENCIES, options) as two,
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
        ("servicebus:Endpoint=sb://a/", ServiceBusOptions(key="secret")),
        ("servicebus:Endpoint=sb://a/", ServiceBusOptions(key="secret", credential=IDENTITY)),
        (
            "servicebus:Endpoint=sb://a/;SharedAccessKeyName=b",
            ServiceBusOptions(credential=IDENTITY),
        ),
        ("servicebus+https://b@a", ServiceBusRestOptions(credential=IDENTITY)),
        ("servicebus+https://a", ServiceBusRestOptions(key="secret", credential=IDENTITY)),
        ("servicebus+https://a", ServiceBusRestOptions(key="secret")),
        ("amqp://", None),
        ("amqp://user@a", None),
        ("amqp://user:secret@a", None),
        ("amqps://a/vhost", None),
        ("amqp://a", AmqpNamespaceOptions(password="secret")),
    ],
)
def test_a_key_that_does_not_fit_a_kind_over_amqp_is_refused_without_its_secrets(url, options):
    with pytest.raises(InvalidRequest) as caught:
        build(url, "one", DEPENDENCIES, options)

    assert "secret" not in str(caught.value).replace("no secret in a URL", "")


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("storage-queue:", None, "AccountName is missing"),
        ("storage-queue:AccountName=contoso", None, "key: is missing"),
        ("storage-queue:AccountName=contoso;AccountKey=c2VjcmV0", None, "no secret in a URL"),
        (
            "storage-queue:QueueEndpoint=http://a;SharedAccessSignature=sig=secret",
            None,
            "no secret in a URL",
        ),
        (
            "storage-queue:AccountName=contoso",
            StorageQueueNamespaceOptions(key="secret!"),
            "key: the account's key in Base64",
        ),
        (
            "storage-queue:AccountName=contoso",
            StorageQueueNamespaceOptions(connection_string="AccountName=contoso"),
            "connection_string: nothing expected in url",
        ),
        (
            "storage-queue:AccountName=contoso",
            StorageQueueNamespaceOptions(key="c2VjcmV0", credential=IDENTITY),
            "credential: leave out the key",
        ),
    ],
)
def test_a_key_that_does_not_fit_an_account_of_storage_is_refused_without_its_secrets(
    url, options, said
):
    with pytest.raises(InvalidRequest, match=said) as caught:
        build(url, "one", DEPENDENCIES, options)

    text = str(caught.value).replace("no secret in a URL", "")
    assert "secret" not in text
    assert "c2VjcmV0" not in text


async def test_an_account_of_storage_is_named_by_its_connection_string():
    options = StorageQueueNamespaceOptions(connection_string="UseDevelopmentStorage=true")
    for url, chosen in (
        ("storage-queue:", options),
        ("storage-queue:UseDevelopmentStorage=true", None),
    ):
        async with build(url, "one", DEPENDENCIES, chosen) as broker:
            assert isinstance(broker, StorageQueueBroker)
    assert "sessions" in cannot("storage-queue:")


def test_the_scheme_says_which_options_there_are():
    assert options_class("MEMORY:") is LocalOptions
    assert options_class("embedded:x") is EmbeddedOptions


@pytest.mark.parametrize(
    "url", ["", "memory", "nosuch:secret", "memory:something", "embedded:", "embedded:/"]
)
def test_a_url_that_names_no_namespace_is_refused_without_being_shown(url):
    with pytest.raises(InvalidRequest) as refused:
        build(url, "east", DEPENDENCIES)

    assert "secret" not in str(refused.value)
    assert str(refused.value).startswith("URL of a namespace: ")  # whose name the caller adds
