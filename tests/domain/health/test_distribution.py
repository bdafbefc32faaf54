"""Values counted by ranges."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.health.distribution import Distribution, Histogram, added

BOUNDS = (1.0, 2.0, 5.0)


def distribution(*values: float, bounds: tuple[float, ...] = BOUNDS) -> Distribution:
    histogram = Histogram(bounds)
    for value in values:
        histogram.record(value)
    return histogram.read()


def test_a_bound_belongs_to_the_range_that_it_ends() -> None:
    assert distribution(0.5, 1.0, 1.1, 5.0, 5.1) == Distribution(BOUNDS, (2, 1, 1, 1), 12.7)


def test_nothing_is_counted_in_the_beginning() -> None:
    assert distribution() == Distribution(BOUNDS, (0, 0, 0, 0), 0.0)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_added_figures_are_as_if_counted_together(first: list[int], second: list[int]) -> None:
    both = added([distribution(*first), distribution(*second)])

    assert both == distribution(*first, *second)
    assert both.count == len(first) + len(second)


def test_no_distributions_have_no_sum() -> None:
    assert added([]) is None


def test_figures_that_another_version_has_counted_in_other_ranges_are_left_out() -> None:
    other = distribution(7.0, bounds=(10.0,))

    assert added([distribution(0.5), other]) == distribution(0.5)
