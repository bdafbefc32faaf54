"""Files with secrets, which only their owner and its group may read or change."""

import os
import stat
from pathlib import Path
from typing import Final

_OF_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


def why_exposed(path: Path, found: os.stat_result) -> str | None:
    """
    The reason why a file with that state must hold no secret: every user of the machine can read or
    change it. The text names file and mode. None: its mode keeps it to its owner and its group.
    """
    if not found.st_mode & _OF_OTHERS:
        return None
    can = "read" if found.st_mode & stat.S_IROTH else "change"
    return (
        f"{path}: every user of this machine can {can} this secret (mode"
        f" {stat.S_IMODE(found.st_mode):04o}); run chmod o= on the file, or in Kubernetes give its"
        " volume defaultMode: 0440"
    )


def check_secret_file(path: Path) -> None:
    """
    Check that the file's mode restricts it to its owner and its group. A file whose mode can't be
    read passes: the code that reads the file reports the reason.

    Raises:
        ValueError: as `why_exposed` says.
    """
    try:
        found = path.stat()
    except OSError:
        return
    if (why := why_exposed(path, found)) is not None:
        raise ValueError(why)
