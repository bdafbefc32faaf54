import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.app.logs import open_log, reloader
from gateway.config.file import Loaded, parse

ONE = '[namespaces.here]\nurl = "memory:"\n'


def loaded(text: str) -> Loaded:
    return parse(text, source="x.toml", folder=Path("/nowhere"), environ={})


def reloaded(before: str, load: Callable[[], Loaded]) -> list[dict[str, Any]]:
    stream = io.StringIO()
    log = open_log(loaded(before), stream, as_json=True)
    reloader(loaded(before), log, load)()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_level_changes_at_once_and_the_rest_needs_a_restart() -> None:
    after = ONE + '[logging]\nlevel = "debug"\n[limits]\ngrace = "1s"\n'

    (line,) = reloaded(ONE, lambda: loaded(after))

    assert (line["event"], line["log_level"]) == ("reloaded", "debug")
    assert line["needs_restart"] == "limits"


def test_a_new_level_alone_needs_no_restart() -> None:
    (line,) = reloaded(ONE, lambda: loaded(ONE + '[logging]\nlevel = "debug"\n'))

    assert line["needs_restart"] == ""


def test_a_file_with_mistakes_changes_nothing() -> None:
    (line,) = reloaded(ONE, lambda: loaded(ONE + "bogus = 1"))

    assert line["event"] == "doubtful"
    assert "bogus" in line["text"]


def test_where_no_terminal_is_the_log_is_json() -> None:
    stream = io.StringIO()

    log = open_log(loaded(ONE), stream, as_json=False)
    reloader(loaded(ONE), log, lambda: loaded(ONE))()

    assert json.loads(stream.getvalue())["event"] == "reloaded"
