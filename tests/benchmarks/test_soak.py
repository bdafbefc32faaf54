"""The verdict of the soak, and its plots. The soak itself: `make soak`."""

from contextlib import nullcontext
from xml.etree import ElementTree

import attrs
import pytest

from benchmarks.soak import FAULTS, Failure, Traffic, Trend, causes_of, slope
from benchmarks.soak_plot import Panel, draw
from gateway.checker.history import FaultTarget


def trend(growth: float) -> Trend:
    return Trend(process="gateway", figure="tasks", median=10.0, growth=growth, allowed=2.0)


def test_a_slope_is_that_of_most_points() -> None:
    line = [(float(at), 3.0 + 0.5 * at) for at in range(100)]
    line[40] = (40.0, 1000.0)
    line[99] = (99.0, -1000.0)

    assert slope(line) == pytest.approx(0.5)
    assert slope(line[:1]) == 0.0


def test_many_points_have_nearly_the_slope_of_some() -> None:
    assert slope([(float(at), 2.0 * at) for at in range(5000)]) == pytest.approx(2.0)


def test_a_figure_that_falls_is_flat() -> None:
    assert [trend(growth).is_flat for growth in (-50.0, 0.0, 2.0, 2.1)] == [True, True, True, False]


def test_a_failed_send_is_counted_by_the_fault_that_began_before_its_end() -> None:
    faults = [(10.0, "primary killed"), (30.0, "primary frozen")]
    traffic = Traffic("rest", lambda: nullcontext(None))  # type: ignore[arg-type]
    traffic.failures += [
        Failure(began=9.5, took=1.0, error="Busy: wait for 5 s"),
        Failure(began=12.0, took=3.0, error="Busy: wait for 7 s"),
        Failure(began=31.0, took=15.0, error=""),
        Failure(began=1.0, took=2.0, error="NotSupported: no"),
    ]

    found = [attrs.astuple(each) for each in causes_of(faults, [traffic])]

    assert found == [
        ("none", "rest", "NotSupported: no", 1, 1.0, 2.0),
        ("primary frozen", "rest", "no answer within 15 s", 1, 1.0, 15.0),
        ("primary killed", "rest", "Busy: wait for # s", 2, -0.5, 3.0),
    ]


def test_a_plot_has_a_curve_of_each_process_in_each_panel() -> None:
    curves = {"gateway": [(0.0, 1.0), (60.0, 2.0)], "<syphon>": [(0.0, 3.0), (60.0, 3.0)]}
    panels = [Panel(name=name, curves=curves) for name in ("memory", "tasks")]
    root = ElementTree.fromstring(draw(panels, [(30.0, "primary killed")], warm_up=12.0))
    names = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]

    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
    assert {"memory", "tasks", "gateway", "<syphon>", "1.0 min"} <= set(names)


def test_faults_hit_both_namespaces_and_a_syphon() -> None:
    hit = {name.partition("-")[0] for name, _ in FAULTS}

    assert hit == {FaultTarget.PRIMARY.value, FaultTarget.SECONDARY.value, FaultTarget.SYPHON.value}
