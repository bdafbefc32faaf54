import stat
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from gateway.app.assembly.pairs import make_envelope, renew_envelopes
from gateway.app.failure import Failure
from gateway.app.runtime import Runtime
from gateway.config.options import Config, Namespace, Pairing
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
    envelope = make_envelope(pair, "east", Runtime())
    return envelope.wrap(Message(body=b"one"), ORDERS, attempt="1", now=NOON)


def test_without_a_key_one_is_kept_beside_the_state_for_us_alone(tmp_path: Path) -> None:
    message = wrapped(pairing(tmp_path))

    after_a_restart = make_envelope(pairing(tmp_path), "east", Runtime())

    assert after_a_restart.unwrap(message).entity == ORDERS
    key_file = tmp_path / "var" / "envelope.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert list(key_file.parent.iterdir()) == [key_file]


def test_another_gateways_kept_key_is_unknown_rather_than_wrong(tmp_path: Path) -> None:
    message = wrapped(pairing(tmp_path / "one"))
    other = make_envelope(pairing(tmp_path / "other"), "east", Runtime())

    # Malformed would dead-letter the message; NotOurs leaves it for the pair that has the key.
    with pytest.raises(NotOurs):
        other.unwrap(message)


def test_configured_keys_are_taken_instead(tmp_path: Path) -> None:
    key = EnvelopeKey(id="1", key=b"sixteen bytes or more")

    envelope = make_envelope(pairing(tmp_path, key), "east", Runtime())

    assert envelope.keys == (key,)
    assert list(tmp_path.iterdir()) == []


def test_a_reload_reaches_every_envelope_of_the_process(tmp_path: Path) -> None:
    old, new = (EnvelopeKey(id=name, key=name.encode() * 32) for name in ("old", "new"))
    runtime, before = Runtime(), pairing(tmp_path, old)
    writer, reader = (make_envelope(before, "east", runtime) for _ in range(2))
    after = attrs.evolve(before, envelope_keys=(new, old), encrypt=True)

    def config(pair: Pairing) -> Config:
        return Config(namespaces={"east": Namespace(url="memory:")}, pairing=pair)

    first = writer.wrap(Message(body=b"one"), ORDERS, attempt="1", now=NOON)
    renew_envelopes(config(after), runtime)
    second = writer.wrap(Message(body=b"two"), ORDERS, attempt="2", now=NOON)
    renew_envelopes(config(attrs.evolve(after, envelope_keys=())), runtime)

    assert [each.properties["x-pairgate-kid"] for each in (first, second)] == ["old", "new"]
    assert b"two" not in bytes(second.body)
    assert [reader.unwrap(each).message.body for each in (first, second)] == [b"one", b"two"]


def test_a_damaged_key_is_not_replaced(tmp_path: Path) -> None:
    wrapped(pairing(tmp_path))
    key_file = tmp_path / "var" / "envelope.key"
    key_file.write_bytes(b"half")

    with pytest.raises(Failure, match="damaged"):
        make_envelope(pairing(tmp_path), "east", Runtime())

    assert key_file.read_bytes() == b"half"


def test_a_kept_key_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    wrapped(pairing(tmp_path))
    (tmp_path / "var" / "envelope.key").chmod(0o644)

    with pytest.raises(Failure, match=r"envelope\.key: every user .*0644"):
        make_envelope(pairing(tmp_path), "east", Runtime())


def test_the_origin_can_be_named(tmp_path: Path) -> None:
    named = attrs.evolve(pairing(tmp_path), origin="gateway-1")

    assert make_envelope(named, "east", Runtime()).origin == "gateway-1"
    assert make_envelope(pairing(tmp_path), "east", Runtime()).origin
