"""The tests that `make debian-check` runs."""

import re
from pathlib import Path

from tests.deploy.debian_check import FEW

ROOT = Path(__file__).parents[2]


def test_each_thing_that_make_test_installs_is_used_by_a_test_in_a_plain_debian() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [needed] = re.findall("^test: (.*)", makefile, re.MULTILINE)
    [packages] = re.findall("^TEST_PACKAGES := (.*)", makefile, re.MULTILINE)
    environments = {Path(stamp).parent.name for stamp in needed.split()}

    assert environments | set(packages.split()) <= FEW.keys()
    assert [test for test in FEW.values() if not (ROOT / test).exists()] == []
