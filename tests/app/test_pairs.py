import stat
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from gateway.app.failure import Failure
from gateway.app.pairs import make_envelope
from gateway.config.options import Pairing
from gateway.domain.entity import EntityPath
from gateway.domain.envelope import EnvelopeKey, NotOurs
from gateway.domain.message import Message
from gateway.pairing.options import PairOptions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS = EntityPath("orders")


def pairing(folder: Path, *keys: EnvelopeKey) -> Pairing:
    return Pairing(
        primary="east",
        secondary="west",
        options=PairOptions(label="east"),
        state=folder / "var" / "state.json",
        envelope_keys=keys,
    )


def wrapped(pair: Pairing) -> Message:
    envelope = make_envelope(pair, "east")
    return envelope.wrap(Message(body=b"one"), ORDERS, attempt="1", now=NOON)


def test_without_a_key_one_is_kept_beside_the_state_for_us_alone(tmp_path: Path) -> None:
    message = wrapped(pairing(tmp_path))

    after_a_restart = make_envelope(pairing(tmp_path), "east")

    assert after_a_restart.unwrap(message).entity == ORDERS
    key_file = tmp_path / "var" / "envelope.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert list(key_file.parent.iterdir()) == [key_file]


def test_another_gateways_kept_key_is_unknown_rather_than_wrong(tmp_path: Path) -> None:
    message = wrapped(pairing(tmp_path / "one"))
    other = make_envelope(pairing(tmp_path / "other"), "east")

    # Malformed would dead-letter the message; NotOurs leaves it for whoever has the key.
    with pytest.raises(NotOurs):
        other.unwrap(message)


def test_configured_keys_are_taken_instead(tmp_path: Path) -> None:
    key = EnvelopeKey(id="1", key=b"sixteen bytes or more")

    envelope = make_envelope(pairing(tmp_path, key), "east")

    assert envelope.keys == (key,)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_key_is_not_replaced(tmp_path: Path) -> None:
    wrapped(pairing(tmp_path))
    key_file = tmp_path / "var" / "envelope.key"
    key_file.write_bytes(b"half")

    with pytest.raises(Failure, match="damaged"):
        make_envelope(pairing(tmp_path), "east")

    assert key_file.read_bytes() == b"half"


def test_the_origin_can_be_named(tmp_path: Path) -> None:
    named = attrs.evolve(pairing(tmp_path), origin="gateway-1")

    assert make_envelope(named, "east").origin == "gateway-1"
    assert make_envelope(pairing(tmp_path), "east").origin
