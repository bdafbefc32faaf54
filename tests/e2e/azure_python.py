"""Parts of the tests of azure python that other tests need, too."""

from pathlib import Path

HERE = Path(__file__).parent
AZURE_PYTHON = HERE.parents[1] / ".venv-azure" / "bin" / "python"
