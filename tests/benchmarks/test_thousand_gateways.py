"""The model of many gateways, with a few of them."""

import attrs
import pytest

from benchmarks.counted_namespace import Fault, Kind
from benchmarks.thousand_gateways import Load, Plan, Report, run

pytestmark = pytest.mark.slow

FEW = Plan(sidecars=10, syphons=2, queues=50, each=5, calm=40.0, outage=75.0, after=200.0, slow=0)


def load_of(report: Report, namespace: str, kind: Kind) -> Load:
    [found] = [
        each for each in report.loads if (each.namespace, each.kind) == (namespace, kind.value)
    ]
    return found


@pytest.mark.parametrize("fault", Fault)
def test_a_fleet_outlives_an_outage_and_its_backlog_becomes_empty(fault: Fault) -> None:
    report = run(attrs.evolve(FEW, fault=fault))

    assert report.empty is not None
    assert report.backlog > 0
    assert load_of(report, "primary", Kind.PROBE).return_peak > 0
    assert [each.refused for each in report.waits] == [0] * len(report.waits)


def test_a_plan_has_the_same_figures_each_time() -> None:
    assert run(FEW) == run(FEW)


def test_a_slow_sidecar_fails_over_alone() -> None:
    report = run(attrs.evolve(FEW, slow=1, outage=0.5))

    slow = [each for each in report.waits if each.group == "slow" and each.window == "calm"]
    others = [each for each in report.waits if each.group != "slow" and each.window == "calm"]
    assert sum(each.diverted for each in slow) > 0
    assert sum(each.diverted for each in others) == 0
