"""Exchanges as entities: any exchange has one, and none is a queue's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.wire.rabbitmq.exchanges import entity_of_exchange, entity_of_queue, exchange_in

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


@given(names)
def test_an_exchange_of_any_name_has_an_entity_that_stands_for_it(name):
    entity = entity_of_exchange(name)

    assert entity is not None
    assert exchange_in(EntityPath.parse(entity.name).name) == name
    assert (entity.parent, entity.topic, entity.whole) == (entity, entity, entity)


def test_the_name_of_an_entity_shows_that_of_the_exchange():
    assert str(entity_of_exchange("shop.events")) == "$exchange/shop.events"
    assert str(entity_of_exchange("Shop:OrderPlaced")) == "$exchange/Shop~3AOrderPlaced"


def test_an_exchange_whose_name_no_entity_can_have_has_none():
    assert entity_of_exchange(".") is None
    assert entity_of_exchange("x" * 250) is not None
    assert entity_of_exchange("x" * 255) is None


def test_a_queue_stands_for_no_exchange():
    assert exchange_in("orders") is None
    assert exchange_in("exchange/orders") is None


def test_a_queue_is_the_entity_of_its_publishes():
    assert entity_of_queue("orders.high-1").name == "orders.high-1"
    assert exchange_in(entity_of_queue("Shop/Orders").name) is None


@pytest.mark.parametrize(
    "queue",
    [
        "orders:high",
        "a b",
        "höher",
        "/orders",
        ".",
        "$exchange/events",
        "orders/$DeadLetterQueue",
        "news/Subscriptions/all",
    ],
)
def test_a_queue_whose_name_no_entity_can_have_belongs_to_the_default_exchange(queue):
    assert exchange_in(entity_of_queue(queue).name) == ""
