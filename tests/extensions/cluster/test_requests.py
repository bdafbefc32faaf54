import json
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    HolderSilent,
    InvalidRequest,
    LockLost,
    MessageTooLarge,
    NoAnswer,
    NotOrderer,
    NotSupported,
    OutcomeUnknown,
    PreconditionFailed,
    SessionLockLost,
    Unavailable,
    Unreachable,
)
from gateway.domain.message import Abandon, AcceptedBy, Complete, DeadLetter, Defer, Message
from gateway.domain.storage_queue import PopReceipt
from gateway.extensions.cluster.requests import (
    LARGEST,
    MOST_ADVICE,
    ChangeHidden,
    ForwardSend,
    HeldAnswer,
    NameOrderer,
    RemoveHidden,
    RenewHeld,
    SettleHeld,
    SuspectEntities,
    Suspicion,
    build_answer,
    build_request,
    parse_answer,
    parse_request,
)
from gateway.extensions.order.queues import ordered_queue
from gateway.wire.amqp.message import decode_message, encode_message
from tests.strategies import amqp_scalars

ORDERS = EntityPath("orders")
TOKEN = "0f9c5b1e-8f1d-4a57-9f53-2a0c3c4f7a10"
RECEIPT = PopReceipt(7, 12, 1)
QUEUE = ordered_queue("east", 3)

_properties = st.dictionaries(st.text(min_size=1, max_size=8), amqp_scalars(), max_size=3)
_settlements = st.one_of(
    st.just(Complete()),
    st.builds(Abandon, delivered=st.booleans(), properties=_properties),
    st.builds(
        DeadLetter,
        reason=st.text(max_size=20),
        description=st.text(max_size=20),
        properties=_properties,
    ),
    st.builds(Defer, properties=_properties),
)


@given(settlement=_settlements)
def test_a_settlement_arrives_as_it_was(settlement):
    request = SettleHeld(ORDERS, TOKEN, settlement)

    assert parse_request(build_request(request)) == request


@pytest.mark.parametrize(
    "request_",
    [
        RenewHeld(EntityPath("topic/subscriptions/all/$deadletterqueue"), TOKEN),
        ChangeHidden(ORDERS, RECEIPT, timedelta(seconds=30), b"a new body"),
        ChangeHidden(ORDERS, RECEIPT, timedelta(0), b""),
        ChangeHidden(ORDERS, RECEIPT, timedelta(microseconds=1)),
        RemoveHidden(ORDERS, PopReceipt(2**62, 2**62, 2**31)),
        SuspectEntities("10.0.0.1:5680", (Suspicion(ORDERS, 1.5, "no answer"),)),
        SuspectEntities("10.0.0.1:5680", tuple([Suspicion(ORDERS, 0, "")] * MOST_ADVICE)),
        ForwardSend(ORDERS, QUEUE, 12.5, (Message(message_id="1", body=b"a"), Message(body=b""))),
        ForwardSend(ORDERS, QUEUE, 0.0, ()),
        NameOrderer("10.0.0.1:5680", QUEUE),
    ],
)
def test_other_requests_do_too(request_):
    assert parse_request(build_request(request_)) == request_


@pytest.mark.parametrize(
    "answer",
    [
        HeldAnswer(),
        HeldAnswer(datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)),
        HeldAnswer(datetime(2026, 1, 1, tzinfo=UTC), RECEIPT),
        *(HeldAnswer(accepted_by=each) for each in AcceptedBy),
    ],
)
def test_answers_do_too(answer):
    assert parse_answer(build_answer(answer)) == answer


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LockLost("gone"), LockLost),
        (SessionLockLost("gone"), LockLost),
        (EntityNotFound("none"), EntityNotFound),
        (OutcomeUnknown("?"), HolderSilent),
        (NoAnswer("?"), HolderSilent),
        (NotOrderer("not any more"), NotOrderer),
        (Unreachable("the primary"), Unavailable),
        (PreconditionFailed("no settlement has one"), Unavailable),
    ],
)
def test_an_error_keeps_its_kind_and_its_outcome(error: BrokerError, kind):
    found = parse_answer(build_answer(error))

    assert type(found) is kind
    assert (str(found), found.outcome) == (str(error), error.outcome)


def test_a_pause_stays_as_long_as_it_was():
    found = parse_answer(build_answer(Busy("wait", retry_after=3.5)))

    assert isinstance(found, Busy)
    assert found.retry_after == 3.5


def test_an_error_of_a_later_version_is_an_unknown_outcome():
    assert isinstance(parse_answer(framed({"error": "Later", "text": "?"})), HolderSilent)


def test_a_request_of_a_later_version_is_answered_as_not_supported():
    with pytest.raises(NotSupported):
        parse_request(framed({"do": "dance", "entity": "orders"}))


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1])
def test_a_request_that_is_too_large_is_refused_before_it_is_sent(size):
    with pytest.raises(MessageTooLarge):
        build_request(ChangeHidden(ORDERS, RECEIPT, timedelta(0), bytes(size)))
    with pytest.raises(MessageTooLarge):
        build_request(SettleHeld(ORDERS, TOKEN, DeadLetter(reason="x" * 100_000)))
    with pytest.raises(MessageTooLarge):
        build_request(ForwardSend(ORDERS, QUEUE, 1.0, (Message(body=bytes(size)),)))


def test_a_message_is_forwarded_byte_for_byte():
    encoded = bytes.fromhex("005370 d0 00000005 00000001 41 005375 a0 01 78")
    message = decode_message(encoded)
    assert encode_message(attrs.evolve(message, encoded=())) != encoded, "another way to write it"

    content = build_request(ForwardSend(ORDERS, QUEUE, 1.0, (message,)))

    assert content.endswith(encoded)
    (found,) = parse_request(content).messages
    assert encode_message(found) == encoded


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"do": "renew", "entity": "orders"},
        {"do": "renew", "entity": "/", "token": TOKEN},
        {"do": "renew", "entity": 7, "token": TOKEN},
        {"do": "settle", "entity": "orders", "token": TOKEN, "settlement": "burn"},
        {"do": "settle", "entity": "orders", "token": TOKEN, "settlement": "dead-letter"},
        {"do": "remove", "entity": "orders", "receipt": [1, 2]},
        {"do": "remove", "entity": "orders", "receipt": [1, 2, True]},
        {"do": "remove", "entity": "orders"},
        {"do": "suspect", "from": "10.0.0.1:5680"},
        {"do": "orderer", "from": "10.0.0.1:5680"},
        {"do": "orderer", "queue": "orders"},
        {"do": "forward", "entity": "orders", "seconds": 1.0},
        {"do": "forward", "entity": "orders", "queue": "orders"},
        *(
            {"do": "forward", "entity": "orders", "queue": "orders", "seconds": seconds}
            for seconds in (-1, True, "1", 1e999)
        ),
        {"do": "suspect", "from": "10.0.0.1:5680", "entities": [["orders", True, ""]]},
        {"do": "suspect", "from": "10.0.0.1:5680", "entities": [["orders", 1]]},
        {"do": "suspect", "from": "10.0.0.1:5680", "entities": [["/", 1, ""]]},
        {"do": "suspect", "from": 7, "entities": []},
        {"do": "suspect", "from": "x", "entities": [["orders", 1, ""]] * (MOST_ADVICE + 1)},
        {"do": "change", "entity": "orders", "receipt": [1, 2, 3], "microseconds": -1},
        {"do": "change", "entity": "orders", "receipt": [1, 2, 3], "microseconds": 10**19},
        {"do": "change", "entity": "orders", "receipt": [1, 2, 3], "microseconds": 2**62},
    ],
)
def test_a_request_that_isnt_one_is_refused(head):
    with pytest.raises(InvalidRequest):
        parse_request(framed(head))


@given(content=st.binary(max_size=60))
def test_arbitrary_bytes_are_no_request_and_no_answer(content):
    with pytest.raises((InvalidRequest, NotSupported)):
        parse_request(content)
    with pytest.raises(InvalidRequest):
        parse_answer(content)


@given(rest=st.binary(max_size=40))
def test_properties_that_arent_amqp_are_refused_or_read(rest):
    head = {"do": "settle", "entity": "orders", "token": TOKEN, "settlement": "defer"}
    try:
        found = parse_request(framed(head, rest))
    except InvalidRequest:
        return
    assert isinstance(found, SettleHeld)


def framed(head, rest=b""):
    text = json.dumps(head).encode()
    return len(text).to_bytes(4) + text + rest
