"""Each planted bug still applies, its header is whole, and it is there for one process only."""

import re
import shutil
import subprocess
from difflib import unified_diff
from operator import truediv
from pydoc import locate

import pytest

from gateway.domain.message import MAX_REASON_LENGTH
from tests.harness.planted import ROOT, PlantedBug, apply, bugs_below, share_package
from tests.pages import blocks

FOLDERS = sorted((ROOT / "tests").rglob("planted"))
BUGS = [bug for folder in FOLDERS for bug in bugs_below(folder)]
FILE = "gateway/domain/message.py"
LIMIT = "gateway.domain.message.MAX_REASON_LENGTH"
HEADER = """\
name:  reasons aren't long
rule:  A reason may be long.
law:   S1 broken
law:   is too long: 3
seeds: 3-9
found: 8
"""


@pytest.fixture
def diff(tmp_path):
    """A diff that makes the longest reason of a dead letter shorter."""
    right = (ROOT / FILE).read_text().splitlines(keepends=True)
    name = "MAX_REASON_LENGTH: Final = "
    wrong = [f"{name}7\n" if line.startswith(name) else line for line in right]
    lines = unified_diff(right, wrong, f"a/{FILE}", f"b/{FILE}")
    path = tmp_path / "reasons-arent-long.diff"
    path.write_text(f"{HEADER}\ndiff --git a/{FILE} b/{FILE}\n{''.join(lines)}")
    return path


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_applies_to_the_package(bug, tmp_path):
    share_package(tmp_path, bug.path)

    apply(bug.path, tmp_path)


def test_each_bug_is_planted_once_in_a_file_of_its_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS) > 60
    assert [bug.path.stem for bug in BUGS] == [bug.slug for bug in BUGS]


def test_a_diff_that_does_not_apply_is_named_with_its_file_and_lines(diff, tmp_path):
    (tmp_path / "gateway/domain").mkdir(parents=True)
    (tmp_path / FILE).write_text("MAX_REASON_LENGTH: Final = 8\n")

    with pytest.raises(ValueError, match=rf"reasons-arent-long\.diff .*: patch failed: {FILE}:\d+"):
        apply(diff, tmp_path)


def test_the_called_code_has_the_bug_and_nothing_else_has_it(diff):
    before = (ROOT / FILE).read_bytes()

    assert PlantedBug.read(diff).call(locate, LIMIT) == 7
    assert locate(LIMIT) == MAX_REASON_LENGTH > 7
    assert (ROOT / FILE).read_bytes() == before


def test_the_code_that_is_run_has_the_bug_and_its_exit_code_is_told(diff):
    code = "import sys; from gateway.domain.message import *; sys.exit(MAX_REASON_LENGTH)"

    assert PlantedBug.read(diff).run("-c", code) == 7


def test_a_call_that_raises_with_the_bug_is_no_result(diff, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        PlantedBug.read(diff).call(truediv, 1, 0)

    assert "ZeroDivisionError" in capfd.readouterr().err


def test_the_header_says_what_must_find_the_bug(diff):
    bug = PlantedBug.read(diff)

    assert bug.laws == ("S1 broken", "is too long: 3")
    assert bug.in_order == (8, 3, 4, 5, 6, 7, 9)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [("rule:", "role:", "role"), ("name:", "# name:", "name"), ("seeds:", "speeds:", "speeds")],
)
def test_a_header_with_another_line_is_refused(diff, old, new, told):
    diff.write_text(diff.read_text().replace(old, new))

    with pytest.raises(ValueError, match=f"in the header: .*{told}"):
        PlantedBug.read(diff)


def test_the_commands_of_the_page_make_a_diff_again_that_does_not_apply(tmp_path):
    """The repository is a copy, in which the lines around the bug have moved."""
    _, make_it_again = blocks("CONTRIBUTING.md", "sh")
    [name] = re.findall(r"^bug=(\S+)", make_it_again)
    [changed] = re.findall(r"^--- a/(\S+)", (ROOT / name).read_text(), re.MULTILINE)
    for path in (name, changed):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, tmp_path / path)
    source = (tmp_path / changed).read_text()
    (tmp_path / changed).write_text(f'"""A line more."""\n{source}')
    here = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*here, *words], cwd=tmp_path, check=True)
    before = PlantedBug.read(tmp_path / name)

    subprocess.run(["sh", "-ec", make_it_again], cwd=tmp_path, check=True)

    assert PlantedBug.read(tmp_path / name) == before
    numbers = [
        int(re.findall(r"^@@ -(\d+)", (root / name).read_text(), re.MULTILINE)[0])
        for root in (ROOT, tmp_path)
    ]
    assert numbers[1] != numbers[0]
    apply(tmp_path / name, tmp_path)
