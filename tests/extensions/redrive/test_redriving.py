"""The exit code of `pairgate redrive`."""

import pytest

from gateway.app.failure import ExitCode
from gateway.extensions.redrive.order import Group, Redriven, Survey
from gateway.extensions.redrive.redriving import RedriveOutcome

SOME = (Group(reason="a", entity="orders", messages=2, moves=2),)


@pytest.mark.parametrize(
    ("survey", "redriven", "code"),
    [
        (Survey(), None, ExitCode.DONE),
        (Survey(groups=SOME), None, ExitCode.DONE),
        (Survey(groups=SOME, problems=("q",)), None, ExitCode.PARTLY),
        (Survey(problems=("q",)), None, ExitCode.FAILED),
        (Survey(problems=("q",), is_outage=True), None, ExitCode.TEMPORARY),
        (Survey(groups=SOME), Redriven(moved=2), ExitCode.DONE),
        (Survey(groups=SOME), Redriven(moved=1, left=1), ExitCode.PARTLY),
        (Survey(groups=SOME), Redriven(moved=1, problems=("p",), is_outage=True), ExitCode.PARTLY),
        (Survey(groups=SOME), Redriven(left=2, problems=("p",)), ExitCode.FAILED),
        (Survey(groups=SOME), Redriven(problems=("p",), is_outage=True), ExitCode.TEMPORARY),
    ],
)
def test_all_some_none_and_not_now_are_told_apart(
    survey: Survey, redriven: Redriven | None, code: ExitCode
) -> None:
    assert RedriveOutcome(through="here", survey=survey, redriven=redriven).code is code
