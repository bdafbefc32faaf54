import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.message import DeadLetter
from gateway.domain.texts import check_reason, check_session_id

LONGEST = "ä" * 4096


def test_a_reason_and_its_description_have_4096_characters_each_at_most() -> None:
    check_reason(DeadLetter(reason=LONGEST, description=LONGEST))
    with pytest.raises(InvalidRequest, match=r"^dead-letter reason: at most 4096 .* got 4097$"):
        check_reason(DeadLetter(reason=LONGEST + "x"))
    with pytest.raises(
        InvalidRequest, match=r"^dead-letter description: at most 4096 .* got 4097$"
    ):
        check_reason(DeadLetter(reason="bad", description=LONGEST + "x"))


def test_a_session_id_has_128_characters_at_most() -> None:
    check_session_id("ä" * 128)
    with pytest.raises(InvalidRequest, match="session id: at most 128"):
        check_session_id("s" * 129)


@pytest.mark.parametrize("half", [0xD800, 0xDFFF])
@pytest.mark.parametrize("field", ["reason", "description"])
def test_half_a_surrogate_pair_is_no_text(field: str, half: int) -> None:
    with pytest.raises(InvalidRequest, match=f"^dead-letter {field}: valid Unicode expected"):
        check_reason(DeadLetter(**{"reason": "bad", field: f"bad {chr(half)}"}))


def test_characters_beside_the_surrogates_are_text() -> None:
    check_reason(DeadLetter(reason="\ud7ff\ue000\U0001f600"))
