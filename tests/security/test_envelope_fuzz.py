"""Changed envelopes do no harm. `make fuzz` tries more of them."""

import pytest

from gateway.domain.envelope import Envelope
from gateway.domain.message import Message
from gateway.wire.pairgate.encryption import MessageEncryption
from tests.security.envelope_fuzz import fuzz

MESSAGES = 600


@pytest.mark.slow
def test_no_changed_envelope_is_opened_or_raises_what_no_syphon_expects() -> None:
    assert fuzz(27, lambda done: done < MESSAGES) == MESSAGES


def careless(self: Envelope, message: Message, own: object) -> object:
    return self.keys[0]


def crash(self: MessageEncryption, secret: bytes, sealed: bytes, associated: bytes) -> Message:
    raise IndexError("a bug of this test")


@pytest.mark.parametrize(
    ("kind", "name", "bug", "error"),
    [
        (Envelope, "_authenticate", careless, AssertionError),
        (MessageEncryption, "open", crash, IndexError),
    ],
)
def test_a_bug_would_be_found(
    kind: type,
    name: str,
    bug: object,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kind, name, bug)

    with pytest.raises(error):
        fuzz(27, lambda done: done < MESSAGES)
