"""Refused credentials: counted for metrics, and reported without flooding the log."""

from collections import Counter
from functools import partial
from typing import Final

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.access import OnRefused, Refusal
from gateway.domain.events.access import CredentialsRefused
from gateway.net.visits import current_visit
from gateway.ports import Observer

WINDOW: Final = 60.0  # seconds; each refusal is reported once within them
MOST: Final = 50  # different refusals that are reported within a window; of the others only the sum
LONGEST_NAME: Final = 64  # characters: enough to recognize a client


@attrs.define(eq=False)
class Refusals:
    """
    Refused credentials of all clients of one process.

    The first refusal of a client, name and reason is reported at once. Repetitions within the
    window are reported as one event with their number, when the window has ended.
    """

    _observer: Observer
    # By the endpoint's protocol and the reason, since the start.
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    # The refusals of this window, each with its repetitions since it was reported.
    _told: dict[CredentialsRefused, int] = attrs.field(factory=dict, init=False)
    _reports: Changes = attrs.field(factory=Changes, init=False)

    def at(self, protocol: str) -> OnRefused:
        """The callback for an endpoint of that protocol."""
        return partial(self._record_here, protocol)

    def _record_here(self, protocol: str, name: str, why: Refusal) -> None:
        self.record(protocol, current_visit().host, name, why)

    def record(self, protocol: str, peer: str, name: str, why: Refusal) -> None:
        """Count and report a refusal of the client at that address."""
        self.counts[protocol, why.value] += 1
        event = CredentialsRefused(
            protocol=protocol,
            peer=peer,
            name=name[:LONGEST_NAME],
            reason=why.value,
            times=1,
        )
        if event in self._told:
            self._told[event] += 1
        elif len(self._told) < MOST:
            self._told[event] = 0
            self._observer.report(event)
            self._reports.notify()
        else:
            rest = attrs.evolve(event, peer="", name="")
            self._told[rest] = self._told.get(rest, 0) + 1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report the repetitions at the end of each window, until cancelled."""
        task_status.started()
        try:
            while True:
                while not self._told:
                    await self._reports.wait_next()
                await trio.sleep(WINDOW)
                self._close_window()
        finally:
            self._close_window()

    def _close_window(self) -> None:
        told, self._told = self._told, {}
        for event, times in told.items():
            if times:
                self._observer.report(attrs.evolve(event, times=times))
