"""The arguments that a queue of RabbitMQ is declared with, and doubts about queues of others."""

from datetime import timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.brokers.rabbitmq.broker import open_namespace
from gateway.brokers.rabbitmq.options import RabbitmqOptions
from gateway.brokers.rabbitmq.settings import UNLIMITED, arguments_for, properties_of
from gateway.demo.ports import free_port
from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    PreconditionFailed,
    Unavailable,
)
from gateway.domain.message import DeadLetter, Defer, Message
from tests.brokers.rabbitmq.nodes import Nodes, client
from tests.harness.rabbitmq import add_user

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
SECOND = timedelta(seconds=1)
LOCK = timedelta(minutes=5)


def milliseconds(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def test_a_backlog_queue_has_no_delivery_limit_in_the_form_of_each_version() -> None:
    old = arguments_for(backlog.QUEUE_PROPERTIES, "dead", "3.10.8")
    new = arguments_for(backlog.QUEUE_PROPERTIES, "dead", "4.1.0")

    assert "x-delivery-limit" not in old
    assert {**old, "x-delivery-limit": -1} == new
    assert old["x-queue-type"] == "quorum"
    assert old["x-overflow"] == "reject-publish"
    assert old["x-dead-letter-strategy"] == "at-least-once"


def test_versions_that_can_not_spread_the_leaders_of_queues_are_not_asked_to() -> None:
    versions = ("", "3.9.29", "3.10.0", "3.12.1", "4.1.0", "4.3.0-beta.1")
    asked = [
        arguments_for(QueueProperties(), "dead", version).get("x-queue-leader-locator")
        for version in versions
    ]

    assert asked == [None, None, "balanced", "balanced", "balanced", "balanced"]


def test_the_limit_counts_deliveries_that_failed() -> None:
    arguments = arguments_for(QueueProperties(max_delivery_count=10), "dead", "3.10.8")

    assert arguments["x-delivery-limit"] == 9


@pytest.mark.parametrize("name", ["default_time_to_live", "auto_delete_on_idle"])
def test_a_time_beyond_that_of_rabbitmq_is_refused(name: str) -> None:
    longest = timedelta(milliseconds=2**32 - 1)

    arguments_for(QueueProperties(**{name: longest}), "dead", "3.10.8")
    with pytest.raises(InvalidRequest, match=rf"{name}: .*4294967295 milliseconds"):
        arguments_for(QueueProperties(**{name: longest + SECOND / 1000}), "dead", "3.10.8")


@pytest.mark.parametrize("version", ["3.10.8", "4.1.0"])
@given(
    st.builds(
        QueueProperties,
        lock_duration=st.just(LOCK),
        dead_lettering_on_expiration=st.just(True),
        max_delivery_count=st.integers(1, UNLIMITED),
        max_size_in_megabytes=st.integers(1, UNLIMITED),
        default_time_to_live=st.none() | st.integers(1, 2**32 - 1).map(milliseconds),
        auto_delete_on_idle=st.none() | st.integers(1, 2**32 - 1).map(milliseconds),
    )
)
def test_the_arguments_tell_the_properties(version: str, properties: QueueProperties) -> None:
    arguments = arguments_for(properties, "dead", version)

    assert properties_of(arguments, LOCK.total_seconds(), version) == properties


def test_a_limit_that_rabbitmq_has_by_default_is_told() -> None:
    told = [properties_of({}, 1.0, version).max_delivery_count for version in ("3.13.7", "4.0.5")]

    assert told == [UNLIMITED, 21]


async def test_properties_are_told_as_far_as_the_credentials_may_see_them(rabbits: Nodes) -> None:
    node, wanted = rabbits.process("primary"), QueueProperties(max_delivery_count=7)
    async with rabbits.namespace("primary") as namespace:
        created = await namespace.create_queue(ORDERS, wanted)
        told = await namespace.describe(ORDERS)
        await add_user(node, "stranger", "secret")
        async with client(namespace.port, user="stranger", password="secret") as stranger:
            seen = await stranger.describe(namespace.inside(ORDERS))

    assert created.properties == told.properties
    assert told.properties.max_delivery_count == 7
    assert seen.properties.max_delivery_count == UNLIMITED


async def test_a_queue_takes_no_other_properties_than_it_has(rabbits: Nodes) -> None:
    async with rabbits.namespace("primary") as namespace:
        info = await namespace.create_queue(ORDERS, QueueProperties())
        other = attrs.evolve(info.properties, max_delivery_count=3)

        assert await namespace.update_queue(ORDERS, info.properties) == info
        with pytest.raises(NotSupported, match=r"max_delivery_count: .* can't be changed"):
            await namespace.update_queue(ORDERS, other)
        with pytest.raises(PreconditionFailed):
            await namespace.update_queue(ORDERS, info.properties, if_version=info.version + 1)


@pytest.mark.parametrize(
    "properties",
    [
        QueueProperties(),
        attrs.evolve(backlog.QUEUE_PROPERTIES, lock_duration=LOCK),
        QueueProperties(default_time_to_live=timedelta(hours=1), max_delivery_count=UNLIMITED),
    ],
    ids=["default", "backlog", "expiring"],
)
async def test_a_queue_of_our_own_loses_nothing(rabbits: Nodes, properties: QueueProperties):
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, properties)

        assert await namespace.verify(ORDERS, is_backlog=False) == []
        assert await namespace.verify(ORDERS.dead_letter, is_backlog=True) == []


@pytest.mark.parametrize(
    ("arguments", "doubts"),
    [
        ({}, ["it is a classic queue, not quorum"]),
        ({"x-queue-type": "classic"}, ["it is a classic queue, not quorum"]),
        (
            {"x-queue-type": "quorum", "x-max-length": 10, "x-delivery-limit": 20},
            [
                "it drops its oldest messages when it is full (overflow drop-head)",
                "it gives a message up after 20 failed deliveries",
            ],
        ),
        (
            {
                "x-queue-type": "quorum",
                "x-message-ttl": 70_000,
                "x-expires": 3_600_000,
                "x-overflow": "reject-publish",
                "x-max-length-bytes": 2**33,
            },
            ["its messages expire", "it is deleted when idle"],
        ),
    ],
    ids=["classic", "said classic", "limits", "expiry"],
)
async def test_a_setting_that_may_lose_messages_is_seen(
    rabbits: Nodes, arguments: dict[str, Any], doubts: list[str]
) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.declare(ORDERS, arguments)

        assert await namespace.verify(ORDERS, is_backlog=True) == doubts


async def test_to_look_needs_the_right_and_makes_no_queue(rabbits: Nodes) -> None:
    node = rabbits.process("primary")
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await add_user(node, "looker", "secret")
        async with client(namespace.port, user="looker", password="secret") as looker:
            [doubt] = await looker.verify(namespace.inside(ORDERS), is_backlog=True)

    assert "can't be read without the permission configure" in doubt


async def test_a_plugin_that_does_not_answer_leaves_the_settings_unknown(rabbits: Nodes) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        async with client(namespace.port, management=nobody) as broker:
            [doubt] = await broker.verify(namespace.inside(ORDERS), is_backlog=True)

    assert "its settings can't be read: the management plugin doesn't answer (127.0.0.1:" in doubt


async def test_a_namespace_that_does_not_answer_lists_nothing_and_says_so() -> None:
    async with client(1) as broker:
        with pytest.raises(Unavailable):
            await broker.list_queues()


@pytest.mark.parametrize(
    "settlement",
    [Defer(), DeadLetter(reason="bad"), DeadLetter(reason="", properties={"a": object()})],
    ids=["defer", "nowhere", "unsayable"],
)
async def test_an_impossible_settlement_leaves_the_lock(rabbits: Nodes, settlement: Any) -> None:
    async with rabbits.namespace("primary") as namespace:
        await namespace.declare(ORDERS, {"x-queue-type": "quorum"})
        await namespace.send(ORDERS, [Message(message_id="1")])
        async with namespace.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)
            with pytest.raises(BrokerError, match=r"defer|dead-letter queue|dead letters|object"):
                await receiver.settle(delivery, settlement)
        async with namespace.open_receiver(ORDERS) as receiver:
            [delivery] = await receiver.receive(1)

        assert delivery.delivery_count == 2


@pytest.mark.parametrize(
    "rest",
    [
        "//host/vhost",
        "//user:hush@",
        "//user@host",
        "//user:hush@host/a/b",
        "//user:hush@host?x",
        "//user:hush@host:port",
        f"//user:hush@host/{'ü' * 128}",
    ],
)
def test_a_url_that_names_no_broker_is_refused_without_its_secret(rest: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        open_namespace("rabbitmq", rest, RabbitmqOptions(), None, None)

    assert "hush" not in str(refused.value)
