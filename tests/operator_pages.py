"""Parts of the tests of operator pages that other tests need, too."""

from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
METRICS = (REFERENCE / "metrics.md").read_text()
