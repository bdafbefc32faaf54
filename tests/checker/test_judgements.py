"""The form of a decision."""

from gateway.checker.judgements import Invariant, undecided


def test_an_undecided_invariant_was_judged_on_no_occasion() -> None:
    assert undecided(Invariant.S11, "nobody sampled").judged == 0
