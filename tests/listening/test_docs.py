"""The example in the documentation runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.listening.options import ListenerOptions
from tests.harness.patience import PATIENCE
from tests.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "listener.md").read_text()


@pytest.mark.slow
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    [code] = blocks("docs/reference/listener.md", "python")
    (said,) = re.findall(r"^It prints `(.*)`\.$", PAGE, re.MULTILINE)
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert (done.stdout.strip(), done.stderr) == (said, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [("poison_threshold", "(5)"), ("idle_max", "(60 s)"), ("grace", "(20 s)")],
)
def test_defaults_are_those_of_the_page(name: str, text: str) -> None:
    default = getattr(ListenerOptions(), name)

    assert f"{default:g}" in text
    assert f"`{name}` {text}" in PAGE or f"`{name}` times {text}" in PAGE
