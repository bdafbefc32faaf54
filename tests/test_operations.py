"""docs/operations.md knows every event, with the level at which it is logged."""

import re
from pathlib import Path

from gateway.app.failure import ExitCode
from gateway.domain.events import Event
from gateway.telemetry.log import LEVEL_OF, name_of

PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
EVENT_ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
CODE_ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)


def test_every_event_is_explained_with_its_level() -> None:
    logged = {name_of(kind): LEVEL_OF.get(kind, "info") for kind in Event.__subclasses__()}
    logged["backlog_ready"] = "info, warning"  # as many queues as wanted, or fewer

    assert dict(EVENT_ROW.findall(PAGE)) == logged


def test_every_exit_code_is_explained() -> None:
    assert [int(code) for code in CODE_ROW.findall(PAGE)] == [code.value for code in ExitCode]
