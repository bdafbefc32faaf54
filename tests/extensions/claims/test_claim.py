"""References to bodies in a store: how they are written and read, and when a body may go."""

import hashlib
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message
from gateway.extensions.claims.claim import (
    CODEC,
    DONE,
    ENTITY,
    ID,
    KEY,
    PREFIXES,
    RESERVED,
    SHA256,
    SIZE,
    STORE,
    STORED,
    Claim,
    ClaimCorrupt,
    Entry,
    Keeping,
    belongs_to,
    claim_of,
    is_name,
    is_reference,
    new_id,
    referring,
    refuse_reserved,
    waste,
    without_reference,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
DATA = b"stored bytes"
HEX = "0123456789abcdef" * 2
CLAIM = Claim(
    id=f"{HEX}.0",
    store="bodies",
    entity="orders",
    codec="zstd",
    size=100,
    stored=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
)


def reference() -> Message:
    return referring(Message(body=b"large", properties={"own": 1}), CLAIM)


def changed(**properties: object) -> Message:
    """The reference with other properties, by constant; None takes one away."""
    merged = {**reference().properties, **properties}
    kept = {name: value for name, value in merged.items() if value is not None}
    return attrs.evolve(reference(), properties=kept)  # type: ignore[arg-type]


def test_the_documented_names_are_those_that_travel() -> None:
    message = reference()

    assert message.body == b""
    assert message.properties == {
        "own": 1,
        "x-pairgate-claim": f"{HEX}.0",
        "x-pairgate-claim-store": "bodies",
        "x-pairgate-claim-entity": "orders",
        "x-pairgate-claim-codec": "zstd",
        "x-pairgate-claim-size": "100",
        "x-pairgate-claim-stored": "12",
        "x-pairgate-claim-sha256": hashlib.sha256(DATA).hexdigest(),
    }


def test_a_reference_is_read_as_it_was_written() -> None:
    assert is_reference(reference())
    assert claim_of(reference()) == CLAIM
    assert without_reference(reference().properties) == {"own": 1}


def test_a_message_with_a_body_is_no_reference() -> None:
    assert not is_reference(attrs.evolve(reference(), body=b"another"))
    assert not is_reference(Message(body=b""))


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_nobody_else_writes_a_property_of_a_reference(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is reserved"):
        refuse_reserved({name: "x", "own": 1})


def test_of_several_the_first_is_named_and_others_are_nobodys_business() -> None:
    with pytest.raises(InvalidRequest, match=f"'{ID}' is"):
        refuse_reserved({STORE: "x", ID: "x"})
    refuse_reserved({"own": 1})


def test_a_codec_that_is_none_is_one() -> None:
    assert claim_of(changed(**{CODEC: "none"})).codec == "none"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in sorted(RESERVED - {KEY})),  # without a key it isn't encrypted
        *((name, 5) for name in sorted(RESERVED)),
        (ID, HEX),
        (ID, f"{HEX}.0{DONE}"),
        (ID, f"../{HEX}.0"),
        (ID, f"{HEX}.0\n"),
        (ID, f"{HEX[1:]}.0"),
        (ID, f"{HEX}.{'1' * 13}"),
        (CODEC, "gzip"),
        (SIZE, "-1"),
        (SIZE, ""),
        (SIZE, "1" * 19),
        (STORED, "1.0"),
        (SHA256, "0" * 63),
        (SHA256, "F" * 64),
        (KEY, ""),
        (KEY, "0" * 62),
        (KEY, "xy" * 32),
    ],
)
def test_a_reference_that_cannot_be_read_is_corrupt_and_names_the_property(
    name: str, value: object
) -> None:
    with pytest.raises(ClaimCorrupt, match=f"property {name}: "):
        claim_of(changed(**{name: value}))


def test_the_key_of_an_encrypted_body_travels_and_is_never_shown() -> None:
    claim = attrs.evolve(CLAIM, key=b"hush" * 8)
    message = referring(Message(), claim)

    assert message.properties["x-pairgate-claim-key"] == (b"hush" * 8).hex()
    assert claim_of(message) == claim
    assert "hush" not in repr(claim)


def test_the_bytes_in_the_store_are_checked() -> None:
    CLAIM.check(DATA)
    with pytest.raises(ClaimCorrupt, match="11 bytes, 12 were"):
        CLAIM.check(DATA[:-1])
    with pytest.raises(ClaimCorrupt, match="another SHA-256"):
        CLAIM.check(b"Stored bytes")


@pytest.mark.parametrize(
    ("id_", "expected"),
    [
        (f"{HEX}.0", True),
        (f"{HEX}.{'9' * 12}", True),
        (f"{HEX}.0.done", True),
        (f"{HEX}.", False),
        (f"{HEX}.0.gone", False),
        (f"{HEX}.0.done.done", False),
        (f"{HEX.upper()}.0", False),
        (f"{HEX}.٣", False),
        ("", False),
    ],
)
def test_a_store_has_only_such_names(id_: str, expected: bool) -> None:
    assert is_name(id_) is expected


def test_each_name_begins_with_one_of_the_prefixes() -> None:
    assert len(PREFIXES) == 256
    assert PREFIXES[:2] == ("00", "01")
    assert PREFIXES[-1] == "ff"


def test_a_claim_names_what_says_that_it_is_done() -> None:
    assert CLAIM.done == f"{HEX}.0.done"


@pytest.mark.parametrize(
    "wrong", [{"id": "x"}, {"codec": "gzip"}, {"sha256": "x"}], ids=lambda wrong: next(iter(wrong))
)
def test_a_claim_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        attrs.evolve(CLAIM, **wrong)  # type: ignore[arg-type]


# --- when its message expires

LIFE = timedelta(seconds=90)


@pytest.mark.parametrize(
    ("message", "expires"),
    [
        (Message(), 0),
        (Message(time_to_live=LIFE), SECONDS + 91),  # a begun second counts
        (Message(time_to_live=LIFE, scheduled=NOW + timedelta(minutes=1)), SECONDS + 151),
        (Message(time_to_live=LIFE, scheduled=NOW - timedelta(minutes=1)), SECONDS + 91),
        (Message(time_to_live=timedelta.max), 0),
    ],
    ids=["never", "then", "scheduled", "was due", "beyond all dates"],
)
def test_an_id_says_when_its_message_expires(message: Message, expires: int) -> None:
    assert new_id("unique", message, NOW).partition(".")[2] == str(expires)


def test_an_id_is_a_name_and_each_is_another() -> None:
    first, second = (new_id(unique, Message(), NOW) for unique in ("1", "2"))

    assert is_name(first)
    assert first != second


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        ("orders", True),
        ("ORDERS", True),
        ("orders/$DeadLetterQueue", True),
        ("invoices", False),
        ("orders/subscriptions/s", False),
    ],
)
def test_a_body_belongs_to_whoever_it_was_sent_to(entity: str, expected: bool) -> None:
    assert belongs_to(CLAIM, EntityPath(entity)) is expected


# --- unneeded names

KEEPING = Keeping(
    after_completion=timedelta(seconds=10),
    after_expiry=timedelta(seconds=20),
    at_most=timedelta(seconds=30),
    done=timedelta(seconds=40),
)
NEVER, SOON = f"{HEX}.0", f"{HEX}.{SECONDS}"


def gone(*entries: tuple[str, float], after: float, **keeping: timedelta | None) -> list[str]:
    """
    Return the names of bodies that may go `after` seconds from now.

    Each entry is a name and the second, relative to now, at which it was written.
    """
    listed = [Entry(name, NOW + timedelta(seconds=at)) for name, at in entries]
    rules = attrs.evolve(KEEPING, **keeping)  # type: ignore[arg-type]
    return list(waste(listed, rules, NOW + timedelta(seconds=after)))


def test_a_body_goes_some_time_after_its_message_was_completed() -> None:
    assert gone((NEVER, 0), (NEVER + DONE, 5), after=14.9) == []
    assert gone((NEVER, 0), (NEVER + DONE, 5), after=15) == [NEVER]


def test_a_body_goes_some_time_after_its_message_expired() -> None:
    assert gone((SOON, -100), after=19.9) == []
    assert gone((SOON, -100), after=20) == [SOON]


def test_a_body_whose_message_never_expires_goes_when_it_is_old() -> None:
    assert gone((NEVER, 0), after=29.9) == []
    assert gone((NEVER, 0), after=30) == [NEVER]


def test_a_body_that_is_to_stay_for_ever_stays() -> None:
    assert gone((NEVER, 0), (SOON, 0), after=1e9, at_most=None, after_expiry=None) == []


def test_a_clock_that_was_set_forward_ages_no_body() -> None:
    """Only a completion is believed: its message needs the body no more."""
    later = NOW + timedelta(days=3650)
    listed = [Entry(name, NOW) for name in (NEVER, SOON, NEVER.replace("0", "f", 1) + DONE)]

    assert list(waste(listed, KEEPING, later, NOW)) == []
    assert list(waste(listed, KEEPING, later, later)) == [entry.name for entry in listed]
    listed.append(Entry(SOON + DONE, NOW))
    assert list(waste(listed, KEEPING, later, NOW)) == [SOON]


@pytest.mark.parametrize("year", [1970, 2020])
def test_a_body_from_before_the_build_has_no_age(year: int) -> None:
    """The message lives on when the clock is set right."""
    then = datetime(year, 1, 2, tzinfo=UTC)
    named = new_id("x", Message(time_to_live=timedelta(hours=1)), then)
    keeping = attrs.evolve(KEEPING, at_most=None)

    assert list(waste([Entry(named, then)], KEEPING, NOW)) == []
    assert list(waste([Entry(named, NOW)], keeping, NOW + timedelta(days=900))) == []


def test_a_body_is_kept_after_it_was_written_whatever_its_gateway_thought_of_the_date() -> None:
    early = f"{HEX}.{SECONDS - 86_400 * 300}"

    assert gone((early, 0), after=19.9) == []
    assert gone((early, 0), after=20) == [early]


def test_the_note_of_a_completion_goes_after_its_body() -> None:
    assert gone((NEVER + DONE, 0), after=39.9) == []
    assert gone((NEVER + DONE, 0), after=40) == [NEVER + DONE]
    assert gone((NEVER, 0), (NEVER + DONE, 0), after=40) == [NEVER]


def test_one_bodys_completion_is_no_others() -> None:
    other = f"{HEX[::-1]}.0"

    assert gone((NEVER, 0), (other + DONE, 0), after=20) == []


def test_a_file_that_somebody_else_has_put_there_stays() -> None:
    assert gone(("readme.txt", 0), ("x" + NEVER, 0), after=1e9) == []


def test_all_that_may_go_goes() -> None:
    assert gone(("readme", 0), (NEVER, 0), (SOON, 0), after=1e9) == [NEVER, SOON]


def test_names_of_properties_are_all_reserved() -> None:
    assert {ID, STORE, ENTITY, CODEC, SIZE, STORED, SHA256, KEY} == RESERVED
