import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from gateway.app.failure import Failure
from gateway.app.logs import Reloader, open_log
from gateway.config.file import Loaded, parse
from gateway.domain.events.gateway import Doubtful, Started

ONE = '[namespaces.here]\nurl = "memory:"\n'
ACCESS = '[[access]]\nname = "sender"\nkey = { env = "KEY" }\nrights = ["Send"]\n'


ENVIRON = {"KEY": "secret", "LONG_KEY": "a secret of 32 bytes, or a few more"}


def loaded(text: str) -> Loaded:
    return parse(text, source="x.toml", folder=Path("/nowhere"), environ=ENVIRON)


async def reloaded(before: str, load: Callable[[], Loaded]) -> list[dict[str, Any]]:
    with TemporaryFile("w+") as stream:
        with open_log(loaded(before), stream.fileno(), as_json=True) as log:
            await Reloader(loaded(before), log, load)(lambda config: None)
        stream.seek(0)
        *lines, last = [json.loads(line) for line in stream]
    assert last["event"] == "stopped"
    return lines


async def test_the_level_changes_at_once_and_the_rest_needs_a_restart() -> None:
    after = ONE + '[logging]\nlevel = "debug"\n[limits]\ngrace = "1s"\n'

    (line,) = await reloaded(ONE, lambda: loaded(after))

    assert (line["event"], line["log_level"]) == ("reloaded", "debug")
    assert line["needs_restart"] == "limits"


def test_a_process_that_fails_is_not_logged_as_stopped() -> None:
    def fail(fd: int) -> None:
        with open_log(loaded(ONE), fd, as_json=True) as log:
            log.report(Started(configuration="x.toml"))
            raise Failure("a store failed")

    with TemporaryFile("w+") as stream:
        with pytest.raises(Failure):
            fail(stream.fileno())
        stream.seek(0)
        events = [json.loads(line)["event"] for line in stream]

    assert events == ["started"]


async def test_a_new_level_alone_needs_no_restart() -> None:
    (line,) = await reloaded(ONE, lambda: loaded(ONE + '[logging]\nlevel = "debug"\n'))

    assert line["needs_restart"] == ""


async def test_access_needs_no_restart() -> None:
    taken: list[Loaded] = []
    with TemporaryFile("w+") as stream:
        with open_log(loaded(ONE), stream.fileno(), as_json=True) as log:
            await Reloader(loaded(ONE), log, lambda: loaded(ONE + ACCESS))(taken.append)
        stream.seek(0)
        line = json.loads(stream.readline())

    assert [policy.name for policy in taken[0].config.access] == ["sender"]
    assert (line["access"], line["needs_restart"]) == ("sender", "")


def pair(*keys: str, more: str = "") -> str:
    listed = ", ".join(f'{{ id = "{key}", key = {{ env = "LONG_KEY" }} }}' for key in keys)
    return f"""
namespaces = {{ east = {{ url = "memory:" }}, west = {{ url = "memory:" }} }}
[pairing]
primary = "east"
secondary = "west"
label = "east"
envelope_keys = [{listed}]
{more}
"""


@pytest.mark.parametrize(
    ("after", "ids", "needs_restart"),
    [
        (pair("new", "old"), "new, old", ""),
        (pair("old", more="encrypt = true"), "old", ""),
        (pair(), "", "pairing"),
        (pair("new", more="backlog_queues = 7"), "new", "pairing"),
    ],
)
async def test_envelope_keys_and_encryption_need_no_restart(
    after: str, ids: str, needs_restart: str
) -> None:
    lines = await reloaded(pair("old"), lambda: loaded(after))

    assert (lines[0]["envelope_keys"], lines[0]["needs_restart"]) == (ids, needs_restart)


async def test_a_file_with_mistakes_changes_nothing() -> None:
    (line,) = await reloaded(ONE, lambda: loaded(ONE + "bogus = 1"))

    assert line["event"] == "doubtful"
    assert "bogus" in line["text"]


def test_where_no_terminal_is_the_log_is_json() -> None:
    with TemporaryFile("w+") as stream:
        with open_log(loaded(ONE), stream.fileno(), as_json=False) as log:
            log.report(Doubtful(text="x"))
        stream.seek(0)

        assert json.loads(stream.readline())["event"] == "doubtful"


@pytest.mark.slow
def test_a_log_that_nobody_reads_does_not_keep_the_process() -> None:
    reading, writing = os.pipe()
    with open(reading), open(writing, "w"):
        began = time.monotonic()
        with open_log(loaded(ONE), writing, as_json=True) as log:
            for _ in range(2000):
                log.report(Doubtful(text="x" * 100))

        assert time.monotonic() - began < 60


SHARDED = ONE + 'queues = ["orders"]\n[[sharding]]\nqueue = "orders"\n'


@pytest.mark.parametrize(
    ("after", "needs_restart"),
    [
        (SHARDED + "shards = 4\n", ""),
        (SHARDED + "shards = 2\ndrain = [1]\n", ""),
        (
            SHARDED
            + 'shards = 2\nnamespaces = ["here", "there"]\n[namespaces.there]\nurl = "memory:"\n',
            "namespaces, sharding",
        ),
        (SHARDED.replace('queue = "orders"', 'queue = "b"') + "shards = 2", "namespaces, sharding"),
        (ONE + 'queues = ["orders"]\n', "namespaces, sharding"),
    ],
)
async def test_shards_are_added_and_drained_without_a_restart(
    after: str, needs_restart: str
) -> None:
    lines = await reloaded(SHARDED + "shards = 2\n", lambda: loaded(after))

    assert lines[0]["needs_restart"] == needs_restart
