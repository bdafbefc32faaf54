"""A process that may have few further open files."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for_files(most: int) -> Iterator[None]:
    """A context in which the process may have that many further open files."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spares = [os.dup(0) for _ in range(most + 1)]
    for each in spares:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spares[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
