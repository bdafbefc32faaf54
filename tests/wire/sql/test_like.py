import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sql.operators import compile_like


def naive(pattern: str, escape: str | None, text: str) -> bool:
    """True if the pattern matches: one character after the other, trying every length of `%`."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return text[:1] == rest[0] and naive(rest[1:], escape, text[1:])
    if head == "%":
        return any(naive(rest, escape, text[size:]) for size in range(len(text) + 1))
    return bool(text) and head in ("_", text[0]) and naive(rest, escape, text[1:])


def always(_: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "expected"),
    [
        ("ABC\\%", "\\", "ABC%", True),  # the documented example
        ("ABC\\%", "\\", "ABCD", False),
        ("ABC\\%", None, "ABC\\D", True),
        ("%bus%", None, "the magic bus", True),
        ("%bus%", None, "bu s", False),
        ("SuperMan%", None, "SuperMan II", True),
        ("superman%", None, "SuperMan II", False),
        ("a%a", None, "a", False),
        ("%ab%ab", None, "ab", False),
        ("_", None, "\n", True),
        ("", None, "", True),
        ("%", None, "", True),
        ("%%", None, "a", True),
        ("!!!_", "!", "!_", True),
        (".*", None, "ab", False),
        ("[ab]", None, "a", False),
        ("%_", "%", "_", True),
        ("%_", "%", "a", False),
    ],
)
def test_patterns_match(pattern: str, escape: str | None, text: str, expected: bool) -> None:
    assert compile_like(pattern, escape)(text, always) is expected


@given(
    st.text("ab%_!.", max_size=8).filter(lambda pattern: "!" not in pattern[-1:]),
    st.sampled_from(["!", None]),
    st.text("ab%_!.\n", max_size=8),
)
def test_patterns_match_as_the_naive_matcher_does(
    pattern: str, escape: str | None, text: str
) -> None:
    assert compile_like(pattern, escape)(text, always) is naive(pattern, escape, text)


@pytest.mark.parametrize(("pattern", "escape"), [("a!", "!"), ("a", ""), ("a", "!!")])
def test_escape_is_one_character_that_another_follows(pattern: str, escape: str) -> None:
    with pytest.raises(ValueError, match="escape"):
        compile_like(pattern, escape)


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("%a" * 500 + "b", 60_000),
        ("%" + "_a" * 250 + "b%", 10_000),
        ("%" + "a" * 500 + "b%", 60_000),
    ],
)
def test_no_piece_of_a_pattern_is_tried_twice(pattern: str, length: int) -> None:
    """A matcher that tried them again would take for ever here."""
    steps = list[int]()

    def take(some: int) -> bool:
        steps.append(some)
        return True

    assert compile_like(pattern)("a" * length, take) is False
    assert sum(steps) <= (len(pattern) + 1) * length


def test_without_more_steps_the_result_is_unknown() -> None:
    assert compile_like("%a_%")("b" * 1000 + "ab", lambda steps: steps < 2000) is None
    assert compile_like("%a_%")("b" * 1000 + "ab", lambda steps: steps < 2005) is True
