"""The reports of a listener's process are built, read and added up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.wire.pairgate.listener_report import Report, build_report, parse_report

reports = st.builds(
    Report,
    calls=st.integers(0, 2**63),
    seconds=st.floats(0.0, 1e12),
    running=st.integers(0, 10_000),
)


@given(reports)
def test_a_built_report_is_read_again(report: Report) -> None:
    line = build_report(report)

    assert line.count(b"\n") == 1
    assert parse_report(line) == report


def test_reports_of_several_processes_add_up() -> None:
    total = Report(calls=2, seconds=0.5, running=1) + Report(calls=3, seconds=1.0, running=2)

    assert total == Report(calls=5, seconds=1.5, running=3)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"calls": 1}',
        b'{"calls": -1, "seconds": 0}',
        b'{"calls": true, "seconds": 0}',
        b'{"calls": 1, "seconds": "x"}',
        b'{"calls": 1, "seconds": -0.5}',
        b'{"calls": 1, "seconds": 0, "running": -1}',
        b"{" + b" " * 4096,
    ],
)
def test_a_report_that_makes_no_sense_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidRequest, match="report"):
        parse_report(line)
