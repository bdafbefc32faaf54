"""Addresses of links, in the ways in which SDKs write them."""

import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire.amqp.servicebus.links import Node, NodeKind, parse_address

ORDERS = EntityPath("orders")
SUBSCRIPTION = EntityPath("topic/Subscriptions/sub")


def entity(path):
    return Node(kind=NodeKind.ENTITY, entity=path)


def management(path):
    return Node(kind=NodeKind.MANAGEMENT, entity=path)


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("orders", entity(ORDERS)),
        ("/orders", entity(ORDERS)),
        ("amqps://localhost:5672/orders", entity(ORDERS)),
        ("amqps://any.servicebus.windows.net/ORDERS/", entity(ORDERS)),
        ("sb://localhost/a/b.c", entity(EntityPath("a/b.c"))),
        ("amqps://localhost/orders/$DeadLetterQueue", entity(ORDERS.dead_letter)),
        ("orders/%24deadletterqueue", entity(ORDERS.dead_letter)),
        ("orders/$Transfer/$DeadLetterQueue", entity(ORDERS.transfer_dead_letter)),
        ("topic/Subscriptions/sub", entity(SUBSCRIPTION)),
        ("orders/$management", management(ORDERS)),
        ("amqp://localhost/orders/$Management", management(ORDERS)),
        ("topic/Subscriptions/sub/$management", management(SUBSCRIPTION)),
        ("orders/$DeadLetterQueue/$management", management(ORDERS.dead_letter)),
        ("$management", management(None)),
        ("$cbs", Node(kind=NodeKind.TOKENS)),
        ("amqps://localhost/$CBS", Node(kind=NodeKind.TOKENS)),
    ],
)
def test_an_address_names_its_node(address, node):
    assert parse_address(address) == node


@pytest.mark.parametrize(
    "address",
    [None, "", "/", "amqps://localhost", "amqps://localhost/", "a b", "a//b", "../a", "x" * 1025],
)
def test_an_address_that_names_nothing_is_refused(address):
    with pytest.raises(InvalidRequest):
        parse_address(address)
