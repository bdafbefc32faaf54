"""`injected` refuses to break the calls that wake up the process itself."""

import os

import pytest

from tests.harness.syscalls import injected


@pytest.mark.parametrize(
    "injection", ["sendto:error=ENETDOWN", "connect,recvfrom:error=EIO:when=3", "write:retval=0"]
)
async def test_no_call_fails_by_which_the_process_wakes_itself(injection: str) -> None:
    with pytest.raises(ValueError, match="wake-up"):
        async with injected(os.getpid(), "fsync:delay_enter=1", injection):
            pytest.fail("it was injected")
