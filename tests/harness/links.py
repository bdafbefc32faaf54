"""Symbolic links of another user."""

import os
from pathlib import Path
from typing import Final

import pytest

STRANGER: Final = 12345  # a user's id

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


def give_link(path: Path, target: str) -> None:
    """Make a symbolic link to `target` at `path` that belongs to `STRANGER`."""
    path.symlink_to(target)
    os.lchown(path, STRANGER, -1)
