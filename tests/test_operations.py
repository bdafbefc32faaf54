"""docs/reference/ knows every event with its level, every metric, and every exit code."""

import re

from prometheus_client.parser import text_string_to_metric_families

from gateway.app.failure import ExitCode
from gateway.telemetry.log import name_of
from gateway.telemetry.metrics import exposition
from tests.operator_pages import METRICS, REFERENCE
from tests.references.events import EVENT_CLASSES
from tests.wire.pairgate.status import OUTAGE

EVENTS = (REFERENCE / "events.md").read_text()
COMMANDS = (REFERENCE / "commands.md").read_text()
EVENT_ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
METRIC_TABLE = re.compile(r"^\| metric \|.*?\n\n", re.MULTILINE | re.DOTALL)
METRIC = re.compile(r"`((?:pairgate|messaging)_\w+)`")
LABELS = {
    "messaging_destination_name",
    "messaging_operation_name",
    "messaging_operation_type",
    "messaging_system",
    "pairgate_accepted_by",
    "pairgate_namespace",
    "pairgate_outcome",
}
CODE_ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)


def test_every_event_is_explained_with_its_level() -> None:
    logged = {name_of(kind): kind.level for kind in EVENT_CLASSES}
    logged["backlog_ready"] = "info, warning"  # as many queues as wanted, or fewer
    logged["entity_state_changed"] = "info, warning"  # a return to the primary, or another change

    assert dict(EVENT_ROW.findall(EVENTS)) == logged


def test_every_metric_is_explained() -> None:
    told = set()
    for family in text_string_to_metric_families(exposition(OUTAGE).decode()):
        names = {sample.name for sample in family.samples}
        told |= {family.name} if family.type == "histogram" else names
    [table] = METRIC_TABLE.findall(METRICS)

    assert set(METRIC.findall(table)) - LABELS == told


def test_every_exit_code_is_explained() -> None:
    assert [int(code) for code in CODE_ROW.findall(COMMANDS)] == [code.value for code in ExitCode]
