"""Unix sockets at paths of any length: the kernel's own limit is 107 bytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """
    Another path to that file, short while the context lasts if its last part is.

    Raises:
        OSError: its folder can't be opened.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
