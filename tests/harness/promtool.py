"""Debian's `promtool`, the checker of Prometheus's files. A missing one is an error, no skip."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.harness.patience import PATIENCE

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = ROOT / "conf" / "examples" / "prometheus-alerts.yml"


def promtool(*arguments: str | Path, text: str = "") -> str:
    """Run promtool and return its output. The test fails if promtool finds an error."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_rules(folder: Path, files: Sequence[Path], tests: Sequence[Mapping[str, Any]]) -> None:
    """Run unit tests of rules (`promtool test rules`); YAML takes them as JSON."""
    file = folder / "tests.json"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(each) for each in files],
                "evaluation_interval": "1m",
                "tests": list(tests),
            }
        )
    )
    promtool("test", "rules", file)
