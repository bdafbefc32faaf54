import pytest

from gateway.config.options import Namespace
from gateway.config.places import addresses_of


def addresses(url, name="east"):
    return addresses_of(Namespace(name=name, url=url))


def whole(url):
    return addresses(url)[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("servicebus+https://k@Bus.EU.example./", "servicebus+https://other@bus.eu.example:443"),
        (
            "servicebus+https://k@bus.example",
            "servicebus:Endpoint=sb://bus.example/;SharedAccessKeyName=k",
        ),
        ("servicebus+http://k@localhost:5300", "servicebus+http://k@127.0.0.1:5300"),
        ("servicebus+http://k@localhost:5300", "servicebus+http://k@[::1]:5300"),
        ("servicebus+http://k@localhost:5300", "servicebus+http://k@[::ffff:127.0.0.1]:5300"),
        ("rabbitmq://u@mq.example", "rabbitmq://v@MQ.example:5672/%2F"),
        ("rabbitmq://u@mq.example", "amqp://u@mq.example"),
        ("rabbitmq://u@b.example,a.example:5672/v", "rabbitmq://u@a.example,b.example/v"),
        ("rabbitmq://u@[2001:DB8::1]", "rabbitmq://u@[2001:db8:0::1]:5672"),
    ],
)
def test_two_ways_to_write_an_address_are_the_same(one, other):
    assert whole(one) == whole(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("servicebus+https://k@bus.eu.example", "servicebus+https://k@bus.us.example"),
        ("servicebus+http://k@localhost:5300", "servicebus+http://k@localhost:5301"),
        ("rabbitmq://u@mq.example/a", "rabbitmq://u@mq.example/b"),
        ("rabbitmq://u@mq.example", "servicebus+http://u@mq.example"),
        ("embedded:var/east.db", "embedded:var/west.db"),
        ("storage-queue:AccountName=contoso", "storage-queue:AccountName=fabrikam"),
    ],
)
def test_two_places_have_two_addresses(one, other):
    assert whole(one) != whole(other)


def test_no_address_has_credentials():
    assert whole("rabbitmq://user:password@mq.example/v") == "amqp://mq.example/v"


def test_several_hosts_have_an_address_each_too():
    assert addresses("rabbitmq://u@b.example,a.example/v") == (
        "amqp://a.example,b.example/v",
        "amqp://a.example/v",
        "amqp://b.example/v",
    )


def test_a_store_is_known_by_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert addresses("embedded:a.db") == addresses(f"embedded:{tmp_path}/a.db")


def test_a_namespace_in_memory_is_known_by_its_name():
    assert addresses("memory:", "east") != addresses("memory:", "west")
