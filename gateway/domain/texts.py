"""The limits of texts that clients set: session ids, and reasons of dead letters."""

from typing import Final

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import MAX_REASON_LENGTH, DeadLetter

_MAX_SESSION_ID: Final = 128  # characters


def check_session_id(session: str) -> None:
    """
    Check the length and the characters of a session id.

    Raises:
        InvalidRequest: names the limit.
    """
    if len(session) > _MAX_SESSION_ID:
        raise InvalidRequest(
            f"session id: at most {_MAX_SESSION_ID} characters expected, got {len(session)}"
        )
    _check_text("session id", session)


def check_reason(why: DeadLetter) -> None:
    """
    Check the texts of a dead-letter settlement.

    Raises:
        InvalidRequest: names the field and its limit.
    """
    for field, text in (("reason", why.reason), ("description", why.description)):
        if len(text) > MAX_REASON_LENGTH:
            raise InvalidRequest(
                f"dead-letter {field}: at most {MAX_REASON_LENGTH} characters expected,"
                f" got {len(text)}"
            )
        _check_text(f"dead-letter {field}", text)


def _check_text(what: str, text: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidRequest(f"{what}: valid Unicode expected, got an unpaired surrogate")
