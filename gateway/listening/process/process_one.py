"""
Process 1 of a container inherits each process whose parent has ended. It must wait for each of
them: one that isn't waited for stays in the table of processes until the container ends.

    process 1      passes signals on, waits for every child, ends as its worker has ended
      └─ worker    the command itself, which waits for the children that it has started
           └─ a command for each message, whose own children may outlive it
"""

import os
import signal
from typing import Final

_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_BY_SIGNAL: Final = 128  # plus the signal's number: the exit code of what a signal has ended


def leave_process_one(one: int = 1) -> None:
    """
    Return in a worker if this is process 1, else at once. Process 1 never returns. To be called
    before the process has threads. `one` is the process that inherits, in tests another one.
    """
    if os.getpid() != one:
        return
    # A signal that comes before the handlers are there would be lost: for process 1 the default of
    # each is to be ignored (pid_namespaces(7)).
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    worker = os.fork()
    if worker:
        _reap(worker)
    # A session of its own, as a terminal's interrupt would otherwise reach it twice.
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)


def _reap(worker: int) -> None:
    """Wait for each child; end as the worker ends."""
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(worker, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while True:
        ended, status = os.wait()
        if ended == worker:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else _BY_SIGNAL - code)
