"""The arguments of orders, and their answers for people."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from gateway.commands.control import lines, probe_lines, until
from gateway.domain.operators.control import ControlAnswer, ControlState, Override
from gateway.domain.operators.probe import ProbeAnswer, ProbeResult
from tests.command_line import pairgate

HERE = timezone(timedelta(hours=1))
NOW = datetime(2026, 11, 25, 3, 0, tzinfo=HERE)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("06:00", datetime(2026, 11, 25, 6, tzinfo=HERE)),
        ("02:30", datetime(2026, 11, 26, 2, 30, tzinfo=HERE)),
        ("03:00", datetime(2026, 11, 26, 3, tzinfo=HERE)),
        ("06:00Z", datetime(2026, 11, 25, 6, tzinfo=UTC)),
        ("2h", datetime(2026, 11, 25, 5, tzinfo=HERE)),
        ("PT1M", datetime(2026, 11, 25, 3, 1, tzinfo=HERE)),
        ("2026-12-01T06:00", datetime(2026, 12, 1, 6, tzinfo=HERE)),
        ("2026-12-01T06:00+00:00", datetime(2026, 12, 1, 6, tzinfo=UTC)),
    ],
)
def test_an_end_is_a_time_a_duration_or_a_date(text: str, date: datetime) -> None:
    assert until(text, NOW) == date


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01"])
def test_anything_else_is_no_end(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        until(text, NOW)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["failover"], "an entity, a pattern or --all expected"),
        (["failback"], "an entity, a pattern or --all expected"),
        (["probe"], "an entity, a pattern or --all expected"),
        (["failover", "orders", "--all"], "no entity expected beside it"),
        (["pause", "orders", "--all"], "no entity expected beside it"),
        (["resume", "orders", "--all"], "no entity expected beside it"),
        (["pause", "--all"], "no `admin` endpoint"),  # it would be asked
        (["resume"], "no `admin` endpoint"),
        (["failover", "a//b"], "target 'a//b'"),
        (["failover", "orders", "--until", "soon"], "06:00, 2h or 2026-11-25T06:00"),
        (["rate", "fast"], "a number above 0, or off, expected"),
        (["rate", "0"], "a number above 0, or off, expected"),
        (["pause", "--reason", "x" * 500], "reason: at most"),
        (["redrive", "--reason", "EntityNotFound"], "--with-reason EntityNotFound"),
        (["dead-letters", "--reason", "EntityNotFound"], "--with-reason EntityNotFound"),
    ],
)
def test_a_wrong_order_is_refused_before_a_gateway_is_asked(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text('[namespaces.here]\nurl = "embedded:here.db"\n')

    result = pairgate(*arguments, "--config", file)

    assert result.exit_code in {1, 2}
    assert problem in result.stderr


def test_an_answer_tells_what_changed_and_what_is_in_effect() -> None:
    pin = Override(target="*", reason="upgrade", operator="ann", since=NOW, until=NOW)
    before = ControlState(entities={"orders": "primary", "bills": "pinned"})
    after = ControlState(
        entities={"orders": "pinned", "bills": "pinned"},
        more_entities=3,
        pins=(pin,),
        rate=200.0,
        not_reached=("serve on gw-2 (process 7): it may not read on the secondary",),
        reach_unknown="the secondary doesn't answer",
    )
    answer = ControlAnswer(
        action="failover", targets=("*",), changed=True, before=before, after=after
    )

    assert lines("127.0.0.1:9640", answer) == [
        "gateway at 127.0.0.1:9640: failover *: done",
        "  orders: primary -> pinned",
        "  bills: pinned",
        "  and 3 more",
        "pinned: * by ann until 2026-11-25 02:00 UTC: upgrade",
        "rate limit: 200 messages a second",
        "not reached: serve on gw-2 (process 7): it may not read on the secondary",
        "  -> give these the order, too: repeat --url for each",
        "not known which other processes follow it: the secondary doesn't answer",
    ]


def test_the_answer_to_a_probe_tells_each_result() -> None:
    answer = ProbeAnswer(
        action="probe",
        targets=("orders*",),
        changed=True,
        before={"orders": "secondary", "orders/eu": "secondary"},
        after={"orders": "half-open", "orders/eu": "secondary"},
        probes={
            "orders": ProbeResult(answered=True, seconds=0.012),
            "orders/eu": ProbeResult(answered=False, seconds=0.0, text="it is disabled"),
        },
        more=3,
    )

    assert probe_lines("127.0.0.1:9640", answer) == [
        "gateway at 127.0.0.1:9640: probe orders*",
        "  orders: secondary -> half-open: answered in 0.012 s",
        "  orders/eu: secondary: it is disabled",
        "  and 3 more, which are probed when they are due",
    ]
