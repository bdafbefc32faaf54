import json
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import (
    BacklogReady,
    ConnectionLost,
    Diverted,
    EntityStateChanged,
    Event,
    Listening,
    SyphonBackedOff,
)
from gateway.domain.message import AcceptedBy
from gateway.telemetry.log import LogObserver, level_of, name_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def logged(event: Event, *, level: str = "debug", as_json: bool = True) -> str:
    lines: list[str] = []
    LogObserver(lines.append, as_json=as_json, level=level, clock=lambda: NOON).report(event)
    return "".join(lines)


def parsed(event: Event) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(logged(event))
    return line


def test_a_line_names_the_event_its_fields_and_the_date() -> None:
    event = Diverted(
        entity=EntityPath("Orders"),
        accepted_by=AcceptedBy.BACKLOG,
        queue=EntityPath("east/q"),
        messages=3,
    )

    assert parsed(event) == {
        "timestamp": "2026-01-01T12:00:00.000+00:00",
        "level": "debug",
        "event": "diverted",
        "entity": "Orders",
        "accepted_by": "backlog",
        "queue": "east/q",
        "messages": 3,
        "in_doubt": False,
    }


@pytest.mark.parametrize("as_json", [True, False])
def test_control_characters_forge_no_line_and_steer_no_terminal(as_json: bool) -> None:
    reason = "a\nb\r\x1b[2J\x9b\u2028\ud800 é"

    line = logged(ConnectionLost(peer="10.0.0.1", reason=reason), as_json=as_json)

    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert not set("\r\x1b\x9b\u2028\ud800") & set(line)


def test_events_below_the_level_are_not_written() -> None:
    event = Diverted(
        entity=EntityPath("a"), accepted_by=AcceptedBy.BACKLOG, queue=EntityPath("q"), messages=1
    )

    assert logged(event, level="info") == ""


def test_the_level_can_be_changed_while_it_runs() -> None:
    lines: list[str] = []
    observer = LogObserver(lines.append, as_json=True, level="error", clock=lambda: NOON)
    event = Listening(protocol="service-bus-http", address="127.0.0.1:1")

    observer.report(event)
    observer.level = "info"
    observer.report(event)

    assert len(lines) == 1


@pytest.mark.parametrize(
    ("before", "after", "level"),
    [
        ("secondary", "half-open", "info"),
        ("half-open", "primary", "info"),
        ("half-open", "secondary", "warning"),
        ("primary", "suspect", "warning"),
    ],
)
def test_a_recovery_is_no_warning(before: str, after: str, level: str) -> None:
    change = EntityStateChanged(
        entity=EntityPath("orders"), before=before, after=after, reason="probes were answered"
    )

    assert level_of(change) == level


def test_fewer_backlog_queues_than_wanted_are_a_warning() -> None:
    assert level_of(BacklogReady(wanted=10, usable=9, reason="")) == "warning"
    assert level_of(BacklogReady(wanted=10, usable=10, reason="")) == "info"


def test_names_are_in_snake_case() -> None:
    assert name_of(EntityStateChanged) == "entity_state_changed"


def test_no_event_has_a_field_that_every_line_has() -> None:
    names = {field.name for kind in Event.__subclasses__() for field in attrs.fields(kind)}

    assert not names & {"event", "level", "timestamp"}


def test_a_line_about_the_same_thing_is_counted_instead_of_repeated() -> None:
    lines: list[str] = []
    now = [NOON]
    observer = LogObserver(lines.append, as_json=True, level="info", clock=lambda: now[0])
    for tenth in range(80):  # 8 s
        now[0] = NOON + timedelta(seconds=tenth / 10)
        for name in ("orders", "bills"):
            observer.report(
                SyphonBackedOff(entity=EntityPath(name), seconds=1.0 + tenth, reason="busy")
            )
    first = [json.loads(line) for line in lines]
    now[0] = NOON + timedelta(seconds=11)
    observer.report(Listening(protocol="amqp", address="127.0.0.1:1"))
    later = [json.loads(line) for line in lines[2:]]

    assert [(each["entity"], each["seconds"]) for each in first] == [("orders", 1), ("bills", 1)]
    assert [(each["event"], each.get("repeated")) for each in later] == [
        ("syphon_backed_off", 79),
        ("syphon_backed_off", 79),
        ("listening", None),
    ]
    assert later[0]["seconds"] == 80.0


@pytest.mark.parametrize(("interval", "written"), [(0.0, 3), (2.0, 3), (10.0, 1)])
def test_an_event_is_counted_for_the_repeat_interval(interval: float, written: int) -> None:
    lines: list[str] = []
    now = [NOON]
    observer = LogObserver(
        lines.append, as_json=True, level="info", clock=lambda: now[0], repeat_interval=interval
    )
    for seconds in (0, 3, 6):
        now[0] = NOON + timedelta(seconds=seconds)
        observer.report(SyphonBackedOff(entity=EntityPath("orders"), seconds=1.0, reason="busy"))

    assert [json.loads(line).get("repeated") for line in lines].count(None) == written


def test_counted_lines_are_told_at_the_end() -> None:
    lines: list[str] = []
    observer = LogObserver(lines.append, as_json=True, level="info", clock=lambda: NOON)
    for _ in range(3):
        observer.report(SyphonBackedOff(entity=EntityPath("orders"), seconds=1.0, reason="busy"))
    observer.close()

    assert [json.loads(line).get("repeated") for line in lines] == [None, 2]


def failed_over(name: str, reason: str = "no answer from {}") -> EntityStateChanged:
    return EntityStateChanged(
        entity=EntityPath(name), before="suspect", after="failed-over", reason=reason.format(name)
    )


def test_an_outage_of_many_entities_has_a_few_lines_with_their_number_and_some_names() -> None:
    lines: list[str] = []
    now = [NOON]
    observer = LogObserver(lines.append, as_json=True, level="info", clock=lambda: now[0])
    for number in range(300):
        observer.report(failed_over(f"q{number}"))
    observer.report(failed_over("other", "{} doesn't exist"))
    first = [json.loads(line) for line in lines]
    now[0] = NOON + timedelta(seconds=11)
    observer.flush_counted()
    [folded] = [json.loads(line) for line in lines[6:]]

    assert [each["entity"] for each in first] == ["q0", "q1", "q2", "q3", "q4", "other"]
    assert (folded["event"], folded["entity"]) == ("entity_state_changed", "q299")
    assert (folded["repeated"], folded["entities"]) == (295, 295)
    assert folded["examples"] == "q5, q6, q7"


def test_a_long_outage_of_many_entities_has_a_line_each_interval() -> None:
    lines: list[str] = []
    now = [NOON]
    observer = LogObserver(lines.append, as_json=True, level="info", clock=lambda: now[0])
    for tenth in range(400):  # 40 s
        now[0] = NOON + timedelta(seconds=tenth / 10)
        for number in range(50):
            reason = "no answer"
            observer.report(
                SyphonBackedOff(entity=EntityPath(f"q{number}"), seconds=1.0, reason=reason)
            )
    observer.close()

    assert 5 + 4 <= len(lines) <= 5 + 5 + 5, "a few with their repetitions, and one for the others"
    assert sum(json.loads(line).get("repeated", 1) for line in lines) == 400 * 50


def test_with_debug_each_entity_has_its_line() -> None:
    lines: list[str] = []
    observer = LogObserver(lines.append, as_json=True, level="debug", clock=lambda: NOON)
    for number in range(300):
        observer.report(failed_over(f"q{number}"))

    assert len(lines) == 300


def test_counted_events_are_told_when_it_is_time() -> None:
    now = [NOON]
    observer = LogObserver(lambda _: None, as_json=True, level="info", clock=lambda: now[0])
    nothing = observer.flush_counted()
    observer.report(failed_over("orders"))
    now[0] = NOON + timedelta(seconds=4)
    soon = observer.flush_counted()
    now[0] = NOON + timedelta(seconds=10)

    assert (nothing, soon, observer.flush_counted()) == (None, 6.0, None)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.9524556045188932, 0.952), (12.3456, 12.3), (1234.56, 1235.0)]
)
def test_numbers_have_three_significant_digits(seconds: float, told: float) -> None:
    event = SyphonBackedOff(entity=EntityPath("orders"), seconds=seconds, reason="")

    assert parsed(event)["seconds"] == told
