"""The page of all benchmarks has the commit, and what each of them has printed."""

import json
import re
import subprocess
import sys

import pytest

from benchmarks import page
from benchmarks.page import Output

# Prints what each benchmark answers to --help, as JSON.
ASK_FOR_HELP = """
import contextlib, io, json, runpy, sys
helps = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as answer, contextlib.suppress(SystemExit):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    helps[name] = answer.getvalue()
print(json.dumps(helps))
"""


def test_the_page_has_the_commit_and_the_output_of_each_benchmark() -> None:
    outputs = [page.run(["-c", f"print('{text}')"]) for text in ("a table", "another")]

    text = page.page({"commit": page.commit()}, outputs)

    assert re.search(r"^- commit: [0-9a-f]{40}", text, re.MULTILINE)
    assert "```text\na table\n```" in text
    assert "```text\nanother\n```" in text


def test_a_benchmark_that_fails_is_shown_with_what_it_had_printed() -> None:
    output = page.run(["-c", "print('half'); raise SystemExit(3)"])

    assert "half" in output.section
    assert "failed, with exit code 3" in output.section


def test_a_benchmark_that_ends_well_has_no_remark() -> None:
    assert "failed" not in Output(("python",), "a table", 0, 2.0).section


def test_the_section_of_a_benchmark_has_its_duration() -> None:
    assert "\nIt took 63 s.\n" in Output(("python",), "a table", 0, 62.7).section


@pytest.mark.slow
def test_each_benchmark_has_the_options_of_both_forms() -> None:
    """In one process: each of them imports most of the others' modules."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK_FOR_HELP, *page.NAMES],
        cwd=page.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    helps = json.loads(asked.stdout)
    used = {
        name: re.findall(r"--\S+", f"{page.SHORT[name]} {page.LONG[name]}") for name in page.NAMES
    }

    assert list(helps) == list(page.NAMES)
    assert [name for name in page.NAMES if "--help" not in helps[name]] == []
    unknown = {
        (name, option) for name in page.NAMES for option in used[name] if option not in helps[name]
    }
    assert unknown == set()


def test_the_long_form_has_each_benchmark() -> None:
    assert tuple(page.LONG) == page.NAMES


def test_the_page_leads_to_the_words_about_the_benchmarks() -> None:
    text = page.page({}, [], place=page.PUBLISHED)

    [link] = re.findall(r"\]\((.*)\)", text)
    assert (page.PUBLISHED.parent / link).resolve() == page.README


def test_the_page_has_the_minutes_of_the_whole_run() -> None:
    outputs = [Output(("python",), "a table", 0, seconds) for seconds in (70.0, 52.0)]

    assert "- duration: 2 minutes\n" in page.page({}, outputs)


def test_the_commit_of_a_tree_is_that_of_git() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=page.ROOT, check=True, capture_output=True, text=True
    )

    assert page.commit().startswith(head.stdout.strip())


def test_the_published_page_is_one_run_of_every_benchmark_and_none_has_failed() -> None:
    text = page.PUBLISHED.read_text()
    commands = re.findall(r"^## `python -m benchmarks\.(\w+)", text, re.MULTILINE)

    assert tuple(commands) == page.NAMES
    assert len(re.findall(r"^- commit: [0-9a-f]{40}$", text, re.MULTILINE)) == 1
    facts = re.findall(r"^- (\w+): .", text, re.MULTILINE)
    assert {"date", "processor", "load", "form"} <= set(facts)
    assert "It failed" not in text
