"""Free TCP ports that a process keeps over its restarts."""

import random
import socket
from typing import Final

# Below the ports that Linux gives to outgoing connections: such a connection, even of a client to
# itself, could take the port of a process that is down.
_FIRST: Final = 15_000
_LAST: Final = 32_000
_BLOCK: Final = 50  # ports for which one is held
# A port that was given away may be bound much later. So that no other process gives it away, too,
# each takes blocks of ports, and holds the first port of a block until it ends.
_own: Final = list[int]()  # not yet given away


def free_port() -> int:
    """
    Return a port of 127.0.0.1 on which nothing listens now, and which no connection takes; another
    one each time, in all processes that call this function and run.

    Raises:
        OSError: none was found.
    """
    while True:
        if not _own:
            _own.extend(_reserve_block())
        port = _own.pop()
        probe = _bind(port)
        if probe is not None:
            probe.close()
            return port


def _reserve_block() -> range:
    """Return ports that no other process gives away while this process runs."""
    firsts = range(_FIRST, _LAST, _BLOCK)
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        holder = _bind(first)
        if holder is not None:
            holder.detach()  # open until this process ends
            return range(first + 1, first + _BLOCK)
    raise OSError(f"no free port of 127.0.0.1 found from {_FIRST} to {_LAST}")


def _bind(port: int) -> socket.socket | None:
    """Return a socket that has the port, but doesn't listen; None: another socket has it."""
    probe = socket.socket()
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        return None
    return probe
