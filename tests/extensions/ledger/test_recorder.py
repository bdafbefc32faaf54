"""Each way in which a send or a settlement ends is one fact for each message."""

import random
from datetime import UTC, datetime
from uuid import UUID

import pytest
import trio

from gateway.capabilities import TransactedSend
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey
from gateway.domain.errors import LockLost, NoAnswer, PartlyAccepted, Unreachable
from gateway.domain.message import Abandon, Complete, DeadLetter, Delivery, Kind, Message, Typed
from gateway.extensions.ledger.facts import Fact, PairSide, What
from gateway.extensions.ledger.recorder import Recorder, identify_with
from gateway.interception import Call, CallKind
from gateway.wire.amqp.message import encode_sorted
from gateway.wire.pairgate.encryption import MessageEncryption

ORDERS, QUEUE = EntityPath("Orders"), EntityPath("east/x-servicebus-transfer/0")
NOW = datetime(2026, 11, 29, tzinfo=UTC)
FIRST, SECOND = Message(message_id="m1"), Message(message_id="m2")


def recorded(envelopes=None) -> tuple[Recorder, list[Fact]]:
    facts: list[Fact] = []
    identify = None if envelopes is None else identify_with(envelopes)
    return Recorder(facts.extend, lambda: NOW, identify), facts


def short(facts: list[Fact]) -> list[tuple[str, What, str]]:
    return [(each.message, each.what, each.why) for each in facts]


def envelope(*, encrypts: bool = False, key: bytes = b"k" * 32) -> Envelope:
    return Envelope(
        pair="east",
        origin="gw",
        keys=(EnvelopeKey(id="a", key=key),),
        encode=encode_sorted,
        encryption=MessageEncryption(random.Random(0)),
        encrypts=encrypts,
    )


async def test_each_batch_of_a_send_has_the_facts_of_its_verdict():
    recorder, facts = recorded()
    call = Call(CallKind.SEND, ORDERS, ((FIRST,), (SECOND,), (FIRST, SECOND)))

    recorder.after(call, [None, Unreachable("refused"), NoAnswer("late")])

    late = "NoAnswer: late"
    assert short(facts) == [
        ("m1", What.ACCEPTED, ""),
        ("m2", What.NOT_SENT, "Unreachable: refused"),
        ("m1", What.UNKNOWN, late),
        ("m2", What.UNKNOWN, late),
    ]
    assert {(each.entity, each.side, each.queue, each.at) for each in facts} == {
        ("Orders", PairSide.PRIMARY, "", NOW)
    }


async def test_a_batch_that_was_accepted_in_part_has_a_fact_for_each_message():
    recorder, facts = recorded()
    error = PartlyAccepted("one of two", [FIRST], Unreachable("refused"))

    recorder.after(Call(CallKind.SEND, ORDERS, ((FIRST, SECOND),)), [error])

    assert short(facts) == [
        ("m1", What.ACCEPTED, ""),
        ("m2", What.NOT_SENT, "Unreachable: refused"),
    ]


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (Unreachable("refused"), What.NOT_SENT),
        (NoAnswer("late"), What.UNKNOWN),
    ],
)
@pytest.mark.parametrize("kind", [CallKind.SCHEDULE, CallKind.COMMIT])
async def test_a_call_that_fails_as_a_whole_has_the_outcome_of_its_error(kind, error, what):
    recorder, facts = recorded()
    work = [TransactedSend(ORDERS, (FIRST,))] if kind is CallKind.COMMIT else ()
    batches = () if kind is CallKind.COMMIT else ((FIRST,),)

    recorder.error(Call(kind, ORDERS, batches, work=work), error)

    assert [(each.message, each.what) for each in facts] == [("m1", what)]


async def test_a_send_that_is_cancelled_is_unknown():
    recorder, facts = recorded()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            recorder.error(Call(CallKind.SEND, ORDERS, ((FIRST,),)), error)
            raise

    assert short(facts) == [("m1", What.UNKNOWN, "cancelled before the answer")]


async def test_a_transaction_that_commits_and_a_schedule_accept_their_messages():
    recorder, facts = recorded()

    recorder.after(Call(CallKind.COMMIT, None, work=[TransactedSend(ORDERS, (FIRST,))]), None)
    recorder.after(Call(CallKind.SCHEDULE, ORDERS, ((SECOND,),)), [7])

    assert short(facts) == [("m1", What.ACCEPTED, ""), ("m2", What.ACCEPTED, "")]


@pytest.mark.parametrize("encrypts", [False, True])
async def test_a_diverted_message_is_known_by_its_own_id(encrypts):
    """An encrypted one has another id on the backlog."""
    around = envelope(encrypts=encrypts)
    wrapped = around.wrap(FIRST, ORDERS, attempt="1", now=NOW)
    recorder, facts = recorded([around])

    recorder.after(Call(CallKind.SEND, QUEUE, ((wrapped,),)), [None])

    [fact] = facts
    assert (fact.message, fact.entity, fact.side) == ("m1", "Orders", PairSide.SECONDARY)
    assert (fact.queue, fact.what) == (QUEUE.name, What.ACCEPTED)


async def test_messages_that_were_not_diverted_have_no_facts_on_the_secondary():
    other = envelope(encrypts=True, key=b"o" * 32).wrap(FIRST, ORDERS, attempt="1", now=NOW)
    recorder, facts = recorded([envelope()])

    recorder.after(Call(CallKind.SEND, QUEUE, ((FIRST, other),)), [None])

    assert facts == []


async def test_settlements_on_the_backlog_are_facts_unless_they_fail_or_release():
    around = envelope()
    delivery = Delivery(message=around.wrap(FIRST, ORDERS, attempt="1", now=NOW), sequence_number=1)
    recorder, facts = recorded([around])
    settlements = [
        (delivery, Complete()),
        (delivery, DeadLetter(reason="TTLExpired", description="too late")),
        (delivery, Abandon()),
        (delivery, Complete()),
    ]

    recorder.after(
        Call(CallKind.SETTLE, QUEUE, settlements=settlements), [None, None, None, LockLost("gone")]
    )

    assert short(facts) == [
        ("m1", What.COMPLETED, ""),
        ("m1", What.DEAD_LETTERED, "TTLExpired: too late"),
    ]


async def test_settlements_at_the_primary_are_no_facts():
    recorder, facts = recorded()
    delivery = Delivery(message=FIRST, sequence_number=1)

    recorder.after(Call(CallKind.SETTLE, ORDERS, settlements=[(delivery, Complete())]), [None])

    assert facts == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"\x01\xff", "01ff"),
        (Typed(Kind.ULONG, 5), "5"),
        ("x" * 600, "x" * 512),
    ],
)
async def test_ids_of_each_type_are_texts(given, text):
    recorder, facts = recorded()

    recorder.after(Call(CallKind.SEND, ORDERS, ((Message(message_id=given),),)), [None])

    assert [each.message for each in facts] == [text]
