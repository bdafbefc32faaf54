"""The sentences that clients look for."""

import re

from gateway.domain.errors import EntityExists, EntityNotFound, LockLost
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
