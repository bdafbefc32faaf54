"""The version of this installation, and the commit and the lock that it was built from."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Final

from gateway import __version__

_HERE: Final = Path(__file__).parents[1]
_BUILT: Final = _HERE / "built.json"  # in a wheel; see setup.py
_DIGITS: Final = 12


def version_text() -> str:
    """The version, and the first digits of the commit and of the lock; "unknown" for either."""
    commit, lock = _built() if _BUILT.exists() else _of_checkout()
    return f"{__version__} (commit {_short(commit)}, lock {_short(lock)})"


def _built() -> tuple[str | None, str | None]:
    found = json.loads(_BUILT.read_text())
    return found["commit"], found["lock"]


def _of_checkout() -> tuple[str | None, str | None]:
    lock = _HERE.parent / "locks" / "run.txt"
    if not lock.exists():
        return None, None
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=_HERE, capture_output=True, text=True, check=False
        )
    except OSError:  # git isn't installed
        commit = None
    else:
        commit = asked.stdout.strip() if asked.returncode == 0 else None
    return commit, hashlib.sha256(lock.read_bytes()).hexdigest()


def _short(digits: str | None) -> str:
    return "unknown" if digits is None else digits[:_DIGITS]
