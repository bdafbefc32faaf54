"""`pairgate demo` shows the main job, and says the truth about it."""

import json
import sys

import pytest
import trio

from tests.e2e.processes import environment

pytestmark = pytest.mark.slow


async def test_the_demo_ends_by_itself_with_nothing_lost(tmp_path):
    done = await trio.run_process(
        [sys.executable, "-m", "gateway", "demo", "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )

    told = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, told
    figures = json.loads(done.stdout)
    assert figures["sent"] == figures["acknowledged"] == figures["received"] > 500, told
    assert figures["diverted"] == figures["syphoned"] > 0, told
    assert (figures["lost"], figures["errors"], figures["findings"]) == (0, 0, []), told
    assert list(tmp_path.iterdir()) == []  # the demo cleans up behind itself
