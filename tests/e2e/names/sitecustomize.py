"""Python imports this at its start, where this folder is in PYTHONPATH: a resolver that lies."""

import os
import socket
import time
from pathlib import Path

NAMES = Path(os.environ["PAIRGATE_TEST_NAMES"])  # lines of a name and its address, or "silent"
SILENCE = 60.0  # seconds
real = socket.getaddrinfo


def getaddrinfo(host, port, *arguments, **named):
    """Resolve names by the present file; addresses stand for themselves."""
    text = host.decode() if isinstance(host, bytes) else host
    if not text.endswith((".test", ".test.localhost")):
        return real(host, port, *arguments, **named)
    # The file is replaced as a whole.
    known = dict(line.split() for line in NAMES.read_text().splitlines())
    if text not in known:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if known[text] == "silent":
        time.sleep(SILENCE)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return real(known[text], port, *arguments, **named)


def numeric_first(host, port, *arguments, **named):
    """Trio asks at once whether it is an address, and in a thread for a name."""
    flags = arguments[3] if len(arguments) > 3 else named.get("flags", 0)
    if flags & socket.AI_NUMERICHOST:
        return real(host, port, *arguments, **named)
    return getaddrinfo(host, port, *arguments, **named)


socket.getaddrinfo = numeric_first
