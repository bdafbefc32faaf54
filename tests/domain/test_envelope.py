import hashlib
import hmac
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.entity import EntityPath
from gateway.domain.envelope import Envelope, EnvelopeKey, refuse_reserved, reserve
from gateway.domain.envelope_fields import (
    CONTENT_HEADER,
    ENTITY,
    MAC,
    ORDER,
    OURS,
    PARTITION,
    PRIMARY,
    PUBLISH,
    RESERVED,
    Malformed,
    NotOurs,
    WrongMac,
    expires_of,
    scheduled_of,
    text_of_id,
    ticks_of,
    time_to_live_of,
)
from gateway.domain.errors import InvalidRequest, MessageError
from gateway.domain.message import (
    DataBody,
    Described,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.wire.amqp.message import decode_message, encode_message, encode_sorted, encoded_size
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.strategies import amqp_values, messages

ENCRYPTION = MessageEncryption(random.Random(0))
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ORDERS = EntityPath("Orders/new")
KEYS = (EnvelopeKey(id="2", key=b"new"), EnvelopeKey(id="1", key=b"old"))


def envelope(**changes):
    given_fields = {
        "pair": "east",
        "origin": "gateway-1",
        "keys": KEYS,
        "encode": encode_sorted,
        "encryption": ENCRYPTION,
    }
    return Envelope(**{**given_fields, **changes})


def wrap(message, **changes):
    return envelope(**changes).wrap(message, ORDERS, attempt="a1", now=NOW)


def changed(message, **properties):
    """The message with other properties; None takes one away."""
    merged = {**message.properties, **properties}
    kept = {name: value for name, value in merged.items() if value is not None}
    return attrs.evolve(message, properties=kept)


def can_be_encoded(message):
    try:
        encode_message(message)
    except MessageError:
        return False
    return True


DATES = st.datetimes(datetime(2020, 1, 1), datetime(2400, 1, 1), timezones=st.just(UTC)).map(
    lambda date: date.replace(microsecond=date.microsecond // 1000 * 1000)
)
MESSAGES = st.builds(
    Message,
    message_id=st.one_of(st.none(), st.text(max_size=8), st.binary(max_size=4), st.uuids()),
    body=st.one_of(
        st.binary(max_size=20),
        st.builds(DataBody, st.tuples(st.binary(max_size=4), st.binary(max_size=4))),
        st.builds(ValueBody, amqp_values()),
        st.builds(SequenceBody, st.just(((1, "a"), (None,)))),
    ),
    properties=st.dictionaries(st.text("abc", min_size=1, max_size=3), amqp_values(), max_size=4),
    session_id=st.one_of(st.none(), st.text(max_size=128)),
    time_to_live=st.one_of(st.none(), st.timedeltas(timedelta(), timedelta(days=10_000))),
    scheduled=st.one_of(st.none(), DATES),
    subject=st.one_of(st.none(), st.text(max_size=4)),
)


@given(message=MESSAGES, encrypts=st.booleans())
def test_unwrap_undoes_wrap(message, encrypts):
    unwrapped = envelope().unwrap(wrap(message, encrypts=encrypts))

    assert unwrapped.entity.name == "Orders/new"
    assert unwrapped.message == attrs.evolve(message, time_to_live=None)
    assert unwrapped.time_to_live == message.time_to_live
    assert (unwrapped.attempt, unwrapped.origin) == ("a1", "gateway-1")


@given(message=messages(), encrypts=st.booleans())
def test_an_envelope_that_was_encoded_on_the_way_can_still_be_opened(message, encrypts):
    unwrapped = envelope().unwrap(decode_message(encode_message(wrap(message, encrypts=encrypts))))

    assert unwrapped.message.properties == message.properties
    assert unwrapped.message.body == message.body


def test_a_time_to_live_beyond_a_timespan_becomes_the_longest_timespan():
    wrapped = wrap(Message(time_to_live=timedelta.max))
    unwrapped = envelope().unwrap(decode_message(encode_message(wrapped)))

    assert unwrapped.time_to_live == timedelta(microseconds=(2**63 - 1) // 10)
    assert unwrapped.expires is None


@pytest.mark.parametrize("encrypts", [False, True])
@pytest.mark.parametrize("part", ["body", "sequence", "property"])
def test_a_value_nested_as_deep_as_can_be_is_wrapped_too(part, encrypts):
    def of_depth(depth):
        value = 1
        for _ in range(depth):
            value = [value]
        return {
            "body": Message(body=ValueBody(value)),
            "sequence": Message(body=SequenceBody(((value,),))),
            "property": Message(properties={"a": value}),
        }[part]

    depth = 1
    while can_be_encoded(of_depth(depth + 1)):
        depth += 1
    deepest = of_depth(depth)

    assert depth > 10
    assert envelope().unwrap(wrap(deepest, encrypts=encrypts)).message == deepest


@given(message=MESSAGES)
def test_nothing_expires_or_waits_on_the_backlog(message):
    wrapped = wrap(message)

    assert wrapped.session_id is None
    assert wrapped.time_to_live is None
    assert wrapped.scheduled is None
    assert wrapped.absolute_expiry is None
    assert (wrapped.message_id, wrapped.body) == (message.message_id, message.body)


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_message_that_would_expire_or_wait_does_neither_on_the_backlog(encrypts):
    later = NOW + timedelta(hours=1)
    wrapped = wrap(
        Message(
            session_id="s",
            partition_key="s",
            time_to_live=timedelta(minutes=1),
            absolute_expiry=later,
            scheduled=later,
        ),
        encrypts=encrypts,
    )

    assert (wrapped.session_id, wrapped.partition_key) == (None, None)
    assert (wrapped.time_to_live, wrapped.absolute_expiry, wrapped.scheduled) == (None, None, None)


def test_a_body_may_come_in_other_pieces_than_it_was_sent_in():
    wrapped = wrap(Message(body=DataBody((b"ab", b"c"))))

    assert envelope().unwrap(attrs.evolve(wrapped, body=b"abc")).message.body == b"abc"


def test_the_digest_of_a_body_of_sequences_is_that_of_all_of_them_encoded():
    encoded = encode_sorted([1, "a"]) + encode_sorted([2])

    found = envelope()._body_digest(SequenceBody(((1, "a"), (2,))))

    assert found == hashlib.sha256(encoded).digest()


@pytest.mark.slow
@given(message=MESSAGES, encrypts=st.booleans())
def test_the_reserve_is_an_upper_bound_of_what_a_diversion_adds(message, encrypts):
    long = {
        "origin": "o" * 64,
        "pair": "p" * 63,
        "keys": (EnvelopeKey(id="k" * 64, key=b"new"),),
    }
    wrapped = wrap(message, encrypts=encrypts, **long)

    assert encoded_size(wrapped) - encoded_size(message) <= reserve(ORDERS, message)


def test_the_reserve_has_room_for_path_and_session():
    assert reserve(ORDERS, Message(session_id="é")) == reserve(EntityPath("a"), Message()) + 9 + 2


def test_the_envelope_is_byte_for_byte_as_the_legacy_client_writes_it():
    message = Message(
        message_id="m",
        session_id="s1",
        time_to_live=timedelta(seconds=90),
        scheduled=datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC),
    )

    encoded = encode_message(wrap(message))

    timespan = "00a316636f6d2e6d6963726f736f66743a74696d657370616e810000000035a4e900"
    for name, value in {
        "x-ms-path": b"\xa1\x0aOrders/new",
        "x-ms-sessionid": b"\xa1\x02s1",
        "x-ms-timetolive": bytes.fromhex(timespan),
        "x-ms-scheduledenqueuetimeutc": b"\x83" + (1_795_262_400_250).to_bytes(8, "big"),
    }.items():
        assert bytes([0xA1, len(name)]) + name.encode() + value in encoded


@pytest.mark.parametrize(
    ("message", "absent"),
    [
        (Message(), {"x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"}),
        (Message(session_id=""), {"x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"}),
    ],
)
def test_only_what_a_message_has_is_in_its_envelope(message, absent):
    assert set(RESERVED) - set(wrap(message).properties) == {
        *absent,
        *(PRIMARY, ENTITY, ORDER, PARTITION, CONTENT_HEADER, PUBLISH),
    }


FULL = Message(
    message_id="m",
    body=b"body",
    properties={"a": 1},
    session_id="s",
    time_to_live=timedelta(seconds=90),
    scheduled=NOW + timedelta(minutes=1),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-path", "other"),
        ("x-ms-sessionid", "t"),
        ("x-ms-sessionid", None),
        ("x-ms-timetolive", Described(symbol("com.microsoft:timespan"), 10)),
        ("x-ms-timetolive", None),
        ("x-ms-scheduledenqueuetimeutc", NOW),
        ("x-ms-scheduledenqueuetimeutc", None),
        ("x-pairgate-origin", "gateway-2"),
        ("x-pairgate-attempt", "a2"),
        ("x-pairgate-expires", (NOW + timedelta(days=9)).isoformat()),
        ("x-pairgate-expires", ""),
        ("x-pairgate-kid", "1"),
        ("x-pairgate-mac", "0" * 64),
        ("x-pairgate-mac", "ä"),
        ("x-pairgate-mac", "\ud800"),
        ("x-pairgate-mac", None),
        ("x-pairgate-attempt", 1),
        ("a", 2),
        ("a", None),
        ("b", 1),
    ],
)
def test_a_changed_property_is_noticed(name, value):
    with pytest.raises(Malformed):
        envelope().unwrap(changed(wrap(FULL), **{name: value}))


@pytest.mark.parametrize("change", [{"message_id": "n"}, {"body": b"corpse"}])
def test_a_changed_message_is_noticed(change):
    with pytest.raises(Malformed):
        envelope().unwrap(attrs.evolve(wrap(FULL), **change))


@pytest.mark.parametrize("encrypts", [False, True])
@pytest.mark.parametrize("value", ["\ud800", 2**80, object()])
def test_a_property_that_can_not_be_encoded_is_malformed(value, encrypts):
    """As a hostile namespace may deliver: a syphon mustn't end by it."""
    with pytest.raises(Malformed):
        envelope().unwrap(changed(wrap(FULL, encrypts=encrypts), b=value))


def test_another_key_of_the_same_id_is_named():
    foreign = wrap(FULL, keys=(EnvelopeKey(id="2", key=b"theirs"),))

    with pytest.raises(Malformed, match="another secret under that id"):
        envelope().unwrap(foreign)


MEANT_FOR = "0123456789abcdef"


def wrap_for(message, primary=MEANT_FOR):
    return envelope().wrap(message, ORDERS, attempt="a1", now=NOW, primary=primary)


def test_the_primary_that_a_message_was_meant_for_travels_and_is_taken_off_again():
    unwrapped = envelope().unwrap(wrap_for(FULL))

    assert unwrapped.primary == MEANT_FOR
    assert unwrapped.message.properties == FULL.properties


def test_an_envelope_of_before_says_no_primary():
    assert envelope().unwrap(wrap(FULL)).primary == ""


@pytest.mark.parametrize("value", ["fedcba9876543210", None, "", 1])
def test_another_primary_is_noticed(value):
    with pytest.raises(Malformed):
        envelope().unwrap(changed(wrap_for(FULL), **{PRIMARY: value}))


def test_a_primary_can_not_be_added():
    with pytest.raises(WrongMac):
        envelope().unwrap(changed(wrap(FULL), **{PRIMARY: MEANT_FOR}))


def test_a_syphon_that_does_not_know_the_primary_verifies_it_as_an_own_property():
    seen_by_it = wrap(changed(FULL, **{PRIMARY: MEANT_FOR}))

    assert wrap_for(FULL).properties[MAC] == seen_by_it.properties[MAC]


def test_neighbouring_fields_can_not_be_shifted():
    wrapped = wrap(Message(message_id="ab"))
    shifted = changed(attrs.evolve(wrapped, message_id="a"), **{"x-pairgate-expires": "b"})

    with pytest.raises(Malformed):
        envelope().unwrap(shifted)


def test_each_key_verifies_and_the_first_signs():
    by_old_key = wrap(FULL, keys=KEYS[1:])

    assert envelope().unwrap(by_old_key).message.message_id == "m"
    assert wrap(FULL).properties["x-pairgate-kid"] == "2"


def test_each_of_two_secrets_with_one_id_verifies():
    wrong = EnvelopeKey(id="1", key=b"set by mistake")
    both = envelope(keys=(*KEYS, wrong))

    for key in (KEYS[1], wrong):
        assert both.unwrap(wrap(FULL, keys=(key,))).entity == ORDERS


def test_a_wrong_mac_names_its_key():
    with pytest.raises(WrongMac) as raised:
        envelope().unwrap(attrs.evolve(wrap(FULL), body=b"changed"))

    assert raised.value.key_id == "2"


@pytest.mark.parametrize("accept_legacy", [False, True])
@pytest.mark.parametrize(
    "wrapped",
    [
        wrap(FULL, keys=(EnvelopeKey(id="3", key=b"new"),)),
        wrap(FULL, pair="west"),
        changed(wrap(FULL), **{"x-pairgate-v": "3"}),
    ],
    ids=["unknown key", "another pair", "unknown version"],
)
def test_a_message_that_is_not_ours_stays_untouched(wrapped, accept_legacy):
    with pytest.raises(NotOurs):
        envelope(accept_legacy=accept_legacy).unwrap(wrapped)


def legacy(message):
    """As the legacy client leaves it: without our properties."""
    wrapped = wrap(message)
    return changed(wrapped, **dict.fromkeys(OURS))


def test_a_legacy_message_is_taken_only_where_that_is_allowed():
    unwrapped = envelope(accept_legacy=True).unwrap(legacy(FULL))

    assert unwrapped.message == attrs.evolve(FULL, time_to_live=None)
    assert unwrapped.time_to_live == timedelta(seconds=90)
    assert unwrapped.expires is None
    with pytest.raises(NotOurs):
        envelope().unwrap(legacy(FULL))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-path", None),
        ("x-ms-path", 1),
        ("x-ms-path", ""),
        ("x-ms-path", "a//b"),
        ("x-ms-sessionid", 1),
        ("x-ms-timetolive", 900_000_000),
        ("x-ms-timetolive", "00:01:30"),
        ("x-ms-timetolive", Described(symbol("com.microsoft:uri"), 1)),
        ("x-ms-timetolive", Described(symbol("com.microsoft:timespan"), 2**80)),
        ("x-ms-scheduledenqueuetimeutc", 1),
        ("x-ms-scheduledenqueuetimeutc", format_datetime(NOW, usegmt=True)),
    ],
)
def test_a_legacy_message_with_a_wrong_type_is_malformed(name, value):
    with pytest.raises(Malformed):
        envelope(accept_legacy=True).unwrap(changed(legacy(FULL), **{name: value}))


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=90), "00:01:30"),
        (timedelta(days=2, hours=3, microseconds=500_000), "2.03:00:00.5000000"),
    ],
)
def test_an_envelope_whose_types_rest_has_changed_is_taken_if_it_is_authentic(span, text):
    message = attrs.evolve(FULL, time_to_live=span)
    over_rest = changed(
        wrap(message),
        **{
            "x-ms-timetolive": text,
            "x-ms-scheduledenqueuetimeutc": format_datetime(FULL.scheduled, usegmt=True),
        },
    )

    unwrapped = envelope().unwrap(over_rest)

    assert unwrapped.time_to_live == span
    assert unwrapped.message.scheduled == FULL.scheduled


@pytest.mark.parametrize("text", ["90", "1:2:3", "00:01:30.", "-00:01:30", "0\u0660:01:30"])
def test_another_text_for_a_time_to_live_is_malformed(text):
    with pytest.raises(Malformed):
        envelope().unwrap(changed(wrap(FULL), **{"x-ms-timetolive": text}))


def test_a_time_to_live_beyond_the_calendar_never_expires():
    unwrapped = envelope().unwrap(wrap(Message(time_to_live=timedelta(days=10**7))))

    assert unwrapped.expires is None
    assert unwrapped.time_to_live == timedelta(days=10**7)


@pytest.mark.parametrize(
    ("message", "mac"),
    [
        (FULL, "cddba0c165cf29d8a460591c433d8c05f97ea4e6d7cb72aa1d977875e6850c1a"),
        (Message(), "f8af639c2a764b6815732abc8e2ebff299716b15aefdffe79eb853a824415d89"),
    ],
    ids=["full", "empty"],
)
def test_an_envelope_of_an_earlier_version_can_be_opened(message, mac):
    assert wrap(message).properties["x-pairgate-mac"] == mac


CANARIES = Message(
    message_id="canary-id",
    body=b"canary-body",
    properties={"canary-name": "canary-value", "traceparent": "canary-trace"},
    correlation_id="canary-correlation",
    session_id="canary-session",
    subject="canary-subject",
    to="canary-to",
    reply_to="canary-reply",
    reply_to_session_id="canary-reply-session",
    content_type="canary/type",
    content_encoding="canary-encoding",
    user_id=b"canary-user",
    partition_key="canary-session",
    annotations={"x-opt-canary": "canary-annotation"},
    footer={"x-opt-canary": "canary-footer"},
    time_to_live=timedelta(seconds=90),
    scheduled=NOW + timedelta(minutes=1),
    durable=True,
    priority=7,
)


def test_an_encrypted_message_shows_its_envelope_and_its_size_only():
    encoded = encode_message(wrap(CANARIES, encrypts=True))

    assert b"canary" in encode_message(wrap(CANARIES))
    assert b"canary" not in encoded
    shown = decode_message(encoded)
    assert set(shown.properties) == {*OURS, ENTITY}
    assert shown == Message(
        message_id=shown.message_id, body=shown.body, properties=shown.properties, durable=True
    )


def test_an_encrypted_message_has_all_that_it_was_sent_with():
    unwrapped = envelope().unwrap(wrap(CANARIES, encrypts=True))

    assert unwrapped.message == attrs.evolve(CANARIES, time_to_live=None, partition_key=None)
    assert unwrapped.time_to_live == CANARIES.time_to_live
    assert unwrapped.expires == NOW + timedelta(minutes=1, seconds=90)


def test_both_forms_are_read_whichever_is_written():
    for encrypts in (False, True):
        reader = envelope(encrypts=not encrypts)
        assert reader.unwrap(wrap(FULL, encrypts=encrypts)).entity == ORDERS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ENTITY, "other"),
        (ENTITY, None),
        (ENTITY, 1),
        ("x-pairgate-v", "1"),
        ("x-pairgate-v", None),
        ("x-pairgate-origin", "gateway-2"),
        ("x-pairgate-attempt", "a2"),
        ("x-pairgate-expires", (NOW + timedelta(days=9)).isoformat()),
        ("x-pairgate-kid", "1"),
        ("x-pairgate-mac", "0" * 64),
        (PRIMARY, MEANT_FOR),
        ("x-ms-sessionid", "t"),
        ("x-ms-timetolive", Described(symbol("com.microsoft:timespan"), 10)),
        ("x-ms-scheduledenqueuetimeutc", NOW),
        ("a", 1),
    ],
)
def test_a_changed_property_of_an_encrypted_message_is_noticed(name, value):
    with pytest.raises((Malformed, NotOurs)):
        envelope().unwrap(changed(wrap(FULL, encrypts=True), **{name: value}))


def test_each_changed_byte_of_an_encrypted_message_is_noticed():
    wrapped = wrap(FULL, encrypts=True)
    for index in range(len(wrapped.body)):
        wrong = bytearray(wrapped.body)
        wrong[index] ^= 1
        with pytest.raises(WrongMac):
            envelope().unwrap(attrs.evolve(wrapped, body=bytes(wrong)))


def resigned(message, **properties):
    """The message with other properties, under a MAC of the right key."""
    return envelope().sign(changed(message, **properties))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ENTITY, "bills"),
        ("x-pairgate-origin", "gateway-2"),
        ("x-pairgate-attempt", "a2"),
        ("x-pairgate-expires", ""),
        (PRIMARY, MEANT_FOR),
    ],
)
def test_a_ciphertext_belongs_to_its_envelope_even_under_the_right_mac(name, value):
    wrapped = wrap(FULL, encrypts=True)

    assert envelope().unwrap(resigned(wrapped)).entity == ORDERS
    with pytest.raises(Malformed, match="can't be decrypted"):
        envelope().unwrap(resigned(wrapped, **{name: value}))


@pytest.mark.parametrize("body", [ValueBody("text"), SequenceBody(((1,),)), b"", b"short"])
def test_a_body_that_no_encryption_has_made_is_malformed(body):
    wrapped = attrs.evolve(wrap(FULL, encrypts=True), body=body)

    with pytest.raises(Malformed):
        envelope().unwrap(resigned(wrapped))


def test_an_encrypted_body_may_come_in_other_pieces_than_it_was_sent_in():
    wrapped = wrap(FULL, encrypts=True)
    in_pieces = DataBody((wrapped.body[:40], wrapped.body[40:]))

    assert envelope().unwrap(attrs.evolve(wrapped, body=in_pieces)).message.body == FULL.body


def test_each_key_decrypts_and_the_first_encrypts():
    by_old_key = wrap(FULL, keys=KEYS[1:], encrypts=True)

    assert envelope().unwrap(by_old_key).message.body == FULL.body
    assert wrap(FULL, encrypts=True).properties["x-pairgate-kid"] == "2"


def test_each_of_two_secrets_with_one_id_decrypts():
    wrong = EnvelopeKey(id="1", key=b"set by mistake")
    both = envelope(keys=(*KEYS, wrong))

    for key in (KEYS[1], wrong):
        assert both.unwrap(wrap(FULL, keys=(key,), encrypts=True)).message.body == FULL.body


def test_an_encrypted_message_under_an_unknown_key_is_left_and_under_a_wrong_one_is_named():
    with pytest.raises(NotOurs, match="'3' is not known"):
        envelope().unwrap(wrap(FULL, keys=(EnvelopeKey(id="3", key=b"new"),), encrypts=True))
    with pytest.raises(WrongMac):
        envelope().unwrap(wrap(FULL, keys=(EnvelopeKey(id="2", key=b"other"),), encrypts=True))


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_content_header_of_rabbitmq_comes_home_as_it_was(encrypts):
    message = Message(
        message_id="m", body=b"body", content_header=b"header", publish_method=b"publish"
    )
    wrapped = wrap(message, encrypts=encrypts)

    assert (wrapped.content_header, wrapped.publish_method) == (None, None)
    assert envelope().unwrap(wrapped).message == message


GIVEN = {CONTENT_HEADER: "content_header", PUBLISH: "publish_method"}


@pytest.mark.parametrize("name", GIVEN)
def test_a_value_that_a_client_of_rabbitmq_gives_is_covered_by_the_mac(name):
    wrapped = wrap(
        Message(**{"message_id": "m", "content_header": b"header", GIVEN[name]: b"given"})
    )
    plain = wrap(Message(message_id="m"))
    rest = {each: value for each, value in wrapped.properties.items() if each != name}
    added = {**plain.properties, name: b"added"}
    for forged in ({**rest, name: b"other"}, rest, added):
        with pytest.raises(WrongMac):
            envelope().unwrap(attrs.evolve(wrapped, properties=forged))


@pytest.mark.parametrize("name", GIVEN)
def test_no_client_can_set_a_value_that_one_of_rabbitmq_gives(name):
    with pytest.raises(InvalidRequest, match=name):
        refuse_reserved(Message(properties={name: b"given"}))


def test_a_legacy_syphon_finds_no_path_in_an_encrypted_message():
    assert "x-ms-path" not in wrap(FULL, encrypts=True).properties


def test_an_encrypted_message_has_an_id_of_its_own():
    both = [wrap(FULL, encrypts=True) for _ in range(2)]

    assert len({each.message_id for each in both}) == 2
    assert envelope().unwrap(both[0]).message.message_id == "m"


def test_the_names_on_the_wire_are_these():
    assert sorted(RESERVED) == [
        "x-ms-path",
        "x-ms-scheduledenqueuetimeutc",
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-pairgate-attempt",
        "x-pairgate-content-header",
        "x-pairgate-entity",
        "x-pairgate-expires",
        "x-pairgate-kid",
        "x-pairgate-mac",
        "x-pairgate-order",
        "x-pairgate-origin",
        "x-pairgate-pair",
        "x-pairgate-partition",
        "x-pairgate-primary",
        "x-pairgate-publish",
        "x-pairgate-v",
    ]


PLACE = f"{'0123456789abcdef' * 2}.a1.7"


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
@pytest.mark.parametrize(
    "message",
    [Message(), Message(session_id="s"), Message(partition_key="p"), Message(session_id="")],
    ids=["neither", "a session", "a partition key", "an empty session"],
)
def test_a_message_with_an_order_is_in_the_session_of_its_key(message, encrypts):
    codec = envelope(encrypts=encrypts)
    wrapped = codec.wrap(message, ORDERS, attempt="a1", now=NOW, place=PLACE)

    restored = codec.unwrap(decode_message(encode_message(wrapped))).message

    assert (wrapped.session_id, wrapped.partition_key) == (PLACE[:32], None)
    assert restored.session_id == message.session_id
    assert restored.partition_key == message.partition_key
    assert not restored.properties


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
@pytest.mark.parametrize(
    "changes",
    [{ORDER: PLACE[:-1] + "8"}, {ORDER: None}, {PARTITION: "other"}],
    ids=["another place", "no place", "another partition key"],
)
def test_the_mac_covers_the_place_in_the_order(encrypts, changes):
    codec = envelope(encrypts=encrypts)
    message = Message(partition_key="p")
    wrapped = codec.wrap(message, ORDERS, attempt="a1", now=NOW, place=PLACE)

    with pytest.raises(WrongMac):
        codec.unwrap(changed(wrapped, **changes))


@pytest.mark.parametrize("place", ["", "7", f"{PLACE}.8", PLACE.replace("0", "g"), 7])
def test_a_place_that_is_none_is_malformed(place):
    wrapped = envelope().wrap(Message(), ORDERS, attempt="a1", now=NOW, place=PLACE)
    forged = envelope().sign(changed(wrapped, **{ORDER: place}))

    with pytest.raises(Malformed, match="x-pairgate-order"):
        envelope().unwrap(forged)


def test_a_message_in_the_session_of_another_key_is_malformed():
    wrapped = envelope().wrap(Message(), ORDERS, attempt="a1", now=NOW, place=PLACE)

    with pytest.raises(Malformed, match="another order"):
        envelope().unwrap(attrs.evolve(wrapped, session_id="f" * 32))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_the_mac_is_that_of_the_standard(key, data):
    assert EnvelopeKey(id="1", key=key).mac(data) == hmac.digest(key, data, "sha256").hex()


@pytest.mark.parametrize("primary", [None, 1, True, ["x"]])
def test_a_primary_of_another_type_is_noticed(primary):
    wrapped = envelope().wrap(Message(message_id="1"), ORDERS, attempt="a1", now=NOW, primary="1")
    properties = {**wrapped.properties, PRIMARY: primary}

    with pytest.raises(WrongMac):
        envelope().unwrap(attrs.evolve(wrapped, properties=properties))


def test_a_key_is_not_shown():
    assert "new" not in repr(KEYS[0])


def test_an_id_that_is_no_good_unicode_is_wrapped_too():
    message = Message(message_id="\ud800")

    assert envelope().unwrap(wrap(message)).message.message_id == "\ud800"


@pytest.mark.parametrize(("session", "expected"), [(None, "p"), ("p", None)])
def test_a_partition_key_goes_with_the_session_that_it_equals(session, expected):
    assert wrap(Message(session_id=session, partition_key="p")).partition_key == expected


def test_an_envelope_of_the_legacy_client_names_no_gateway():
    unwrapped = envelope(accept_legacy=True).unwrap(legacy(FULL))

    assert (unwrapped.attempt, unwrapped.origin) == ("", "")


@pytest.mark.parametrize("text", ["", "x", "2026-11-21", "2026-11-21T12:00:00"])
def test_an_expiry_needs_a_date_with_its_offset(text):
    message = Message(properties={"x-pairgate-expires": text})

    if text:
        with pytest.raises(Malformed, match="x-pairgate-expires"):
            expires_of(message)
    else:
        assert expires_of(message) is None


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("00:00:00.0000010", timedelta(microseconds=1)),
        ("00:00:00.1", timedelta(milliseconds=100)),
        ("1.00:00:00", timedelta(days=1)),
        ("12345678.23:59:58", timedelta(days=12345678, hours=23, minutes=59, seconds=58)),
        ("01:02:03", timedelta(hours=1, minutes=2, seconds=3)),
    ],
)
def test_each_place_of_a_timespans_text_has_its_unit(text, span):
    message = Message(properties={"x-ms-timetolive": text})

    assert time_to_live_of(message, text_allowed=True) == span


def test_ticks_are_tenths_of_a_microsecond():
    span = timedelta(seconds=1, microseconds=1)
    ticks = Described(symbol("com.microsoft:timespan"), 10_000_010)

    assert ticks_of(span) == 10_000_010
    assert (
        time_to_live_of(Message(properties={"x-ms-timetolive": ticks}), text_allowed=False) == span
    )


def test_a_span_that_no_timespan_can_say_is_the_longest_one():
    assert ticks_of(timedelta.max) == 2**63 - 1


@pytest.mark.parametrize(
    "text",
    ["yesterday", "", f"Sat, 21 Nov {10**20} 12:00:00 GMT", f"21 Nov 2026 12:00:00 +{10**20}"],
)
def test_a_date_that_rest_can_not_have_written_is_malformed(text):
    message = Message(properties={"x-ms-scheduledenqueuetimeutc": text})

    with pytest.raises(Malformed, match="HTTP date"):
        scheduled_of(message, text_allowed=True)


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_a_date_of_rest_is_utc(zone):
    message = Message(
        properties={"x-ms-scheduledenqueuetimeutc": f"Sat, 21 Nov 2026 12:00:00 {zone}"}
    )

    assert scheduled_of(message, text_allowed=True) == NOW


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (None, ""),
        ("a", "a"),
        (b"\x01\xff", "01ff"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (7, "7"),
        (Typed(Kind.ULONG, 7), "7"),
    ],
)
def test_an_id_of_each_type_has_a_text(message_id, text):
    assert text_of_id(message_id) == text


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_names_are_refused(name):
    with pytest.raises(InvalidRequest, match=name):
        refuse_reserved(Message(properties={"a": 1, name: "x"}))


def test_other_names_are_not_refused():
    refuse_reserved(Message(properties={"x-ms-other": 1, "x-pairgate": 2}))
