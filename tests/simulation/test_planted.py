"""Each planted bug is found, so what passes the same seeds without one means something."""

import pytest

from tests.simulation.bugs import BUGS, JUDGED, first_problem, first_seeds

LONGEST = 1200  # seconds of a processor that others use too, if all seeds have to be tried


@pytest.mark.slow
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_breaks_its_law(bug):
    found = bug.call(first_seeds, bug.laws, bug.in_order)

    assert found.keys() == set(bug.laws)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST)
def test_no_bug_means_no_finding():
    """The other first seeds are judged by `test_histories`."""
    found = {seed for bug in BUGS for seed in bug.found if seed not in JUDGED}

    assert first_problem(sorted(found)) is None


def test_each_bug_has_a_law_that_must_find_it():
    assert [bug.name for bug in BUGS if not bug.laws] == []
