"""A misspelt target of an order is found, and a similar name suggested."""

import pytest

from gateway.domain.operators.known_targets import refusal_of, unknown_among

KNOWN = ("Orders", "bills/eu", "bills/us", "audit")


def test_a_target_is_known_if_it_matches_a_name_in_any_case() -> None:
    targets = ("*", "orders", "ordres", "bills/*", "bill/*", "*/us", "**")

    assert unknown_among(targets, KNOWN) == ["ordres", "bill/*"]


def test_without_any_name_only_everything_is_known() -> None:
    assert unknown_among(("orders", "*", "o*"), ()) == ["orders", "o*"]


@pytest.mark.parametrize(
    ("unknown", "text"),
    [
        (["ordres"], "targets: nobody knows 'ordres': did you mean Orders? --force"),
        (["bill/*"], "targets: nobody knows 'bill/*': did you mean bills/us or bills/eu? --force"),
        (["zzz"], "targets: nobody knows 'zzz'. --force"),
        (["z1", "z2", "z3", "z4"], "targets: nobody knows 'z1'; 'z2'; 'z3'; 1 more. --force"),
    ],
)
def test_the_refusal_names_similar_entities_and_the_words_to_add(
    unknown: list[str], text: str
) -> None:
    assert refusal_of(unknown, KNOWN).startswith(text)


def test_the_refusal_tells_that_the_primary_could_not_be_asked() -> None:
    text = refusal_of(["zzz"], KNOWN, "it doesn't answer")

    assert "'zzz' (the primary can't be asked: it doesn't answer). --force" in text


def test_the_similar_name_is_found_among_ten_thousand() -> None:
    names = [f"tenant-{number:05}/orders" for number in range(10_000)]

    assert "did you mean tenant-07770/orders" in refusal_of(["tenant-07770/ordres"], names)
