"""Free TCP ports that a process keeps over its restarts."""

import random
import socket
from typing import Final

# Below the ports that Linux gives to outgoing connections: such a connection, even of a client to
# itself, could take the port of a process that is down.
_FIRST: Final = 15_000
_LAST: Final = 32_000
_given: Final = set[int]()


def free_port() -> int:
    """
    Return a port of 127.0.0.1 on which nothing listens now, and which no connection takes; in one
    process, another one each time.

    Raises:
        OSError: none was found in a hundred.
    """
    for _ in range(100):
        port = random.SystemRandom().randint(_FIRST, _LAST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise OSError(f"no free port of 127.0.0.1 found from {_FIRST} to {_LAST}")
