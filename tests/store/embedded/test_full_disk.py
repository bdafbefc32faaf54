"""
A disk that fills up: sends are refused in time, everything that is there can be completed, and then
there is room again.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# Mounting takes root, of the machine or of a namespace of users.
ALONE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def fill(kind: str, folder: Path, dependencies: Sequence[str] = ()) -> dict[str, Any]:
    command = [
        *dependencies,
        sys.executable,
        "-m",
        "tests.store.embedded.filler",
        kind,
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("disk", "dependencies"), [("tmpfs", ALONE), ("limit", ())])
def test_a_full_disk_refuses_in_time_and_is_emptied_by_completing(tmp_path, disk, dependencies):
    told = fill(disk, tmp_path, dependencies)

    assert told["refused"] == ["StorageFull"]
    assert told["completed"] == told["sent"] > 500
    assert told["again"] == ["NoneType"]
    assert told["failed"] == ""
