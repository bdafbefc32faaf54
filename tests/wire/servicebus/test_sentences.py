"""The sentences that clients look for, and the addresses that no client is told."""

import re

import pytest

from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    LockLost,
    NoAnswer,
    Unavailable,
    Unreachable,
)
from gateway.wire.servicebus.errors import build_error, parse_error
from gateway.wire.servicebus.sentences import sentence_of


def test_an_entity_that_is_not_there_is_told_in_the_words_that_sdks_look_for() -> None:
    text = sentence_of(EntityNotFound("there is no queue 'nowhere'"))

    assert re.search("The messaging entity .* could not be found.*'nowhere'", text)


def test_an_entity_that_is_there_already_is_told_in_known_words() -> None:
    detail = build_error(EntityExists("orders")).body.decode()

    assert "<Detail>The messaging entity that was asked for already exists: orders" in detail


def test_a_sentence_is_said_once_however_many_gateways_pass_it_on() -> None:
    passed = parse_error(build_error(EntityNotFound("no queue")))

    assert sentence_of(passed) == sentence_of(EntityNotFound("no queue"))


def test_the_texts_of_other_errors_stay() -> None:
    assert sentence_of(LockLost("gone")) == "gone"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("127.0.0.1:30672: Connection refused", "the namespace: Connection refused"),
        ("[::1]:5672: Connection refused", "the namespace: Connection refused"),
        ("db1:5671, orders: no answer", "the namespace, orders: no answer"),
        ("a.b:5671: reset; rabbit-2:5672: reset", "the namespace: reset; the namespace: reset"),
        ("its clock says 10:56:03, which is late", "its clock says 10:56:03, which is late"),
        ("orders is failed over", "orders is failed over"),
    ],
)
@pytest.mark.parametrize("error", [Unavailable, Unreachable, NoAnswer])
def test_a_text_for_clients_has_no_address_of_a_namespace(
    error: type[BrokerError], text: str, told: str
) -> None:
    assert sentence_of(error(text)) == told


def test_a_name_with_a_number_behind_it_stays_where_no_address_can_be() -> None:
    text = "The messaging entity orders:12 could not be found"

    assert sentence_of(EntityNotFound(text)) == text
