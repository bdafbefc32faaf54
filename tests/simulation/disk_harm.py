"""Harms a namespace and its disk: a kill, a power cut, a disk that fails."""

import random
from typing import Final

import attrs
import trio

from tests.harness.crash_disk import Ailment
from tests.harness.faults import FaultyBroker, Operation
from tests.simulation.clients import Journal
from tests.simulation.disk import DiskBroker
from tests.simulation.recorder import Recorder
from tests.simulation.scenario import LOOKED, DiskFault

_A_WRITE: Final = 5.0  # seconds in which one is awaited, so that the power goes in the middle of it


@attrs.frozen(kw_only=True)
class Harm:
    """Harms one namespace."""

    name: str
    namespace: FaultyBroker
    journal: Journal
    recorder: Recorder
    rng: random.Random

    async def crash(self, back: float) -> None:
        """
        Kill it, or cut its power if it's on a disk; return when it's back.

        Raises:
            StoreError: what was acknowledged isn't there, or the store is damaged.
        """
        store, seen = self.namespace.inner, self.journal.seen
        if isinstance(store, DiskBroker):
            with trio.move_on_after(_A_WRITE):
                await store.next_step()
        cut_off = self.namespace.under_way(Operation.SEND)
        seen["a namespace crashed with sends under way"] += cut_off
        self.namespace.crash()
        if isinstance(store, DiskBroker):
            undone = store.cut_power()
            self.recorder.note_power_cut(self.name)
            self.journal.note(f"the power is cut, {undone} writes were never made")
            seen["a power cut"] += 1
            seen["a power cut in the middle of a commit"] += undone > 0
        await trio.sleep_until(back)
        self.namespace.restart()

    async def trouble(self, fault: DiskFault) -> None:
        """
        Let its disk have a fault, and start a store that has failed again; return when it's well.

        Raises:
            StoreError: as `crash`.
        """
        await trio.sleep_until(fault.at)
        store = self.namespace.inner
        if not isinstance(store, DiskBroker):
            return
        what = "there is hardly any room" if fault.ailment is None else fault.ailment.value
        noted = self.recorder.note_disk_fault(fault)
        self.journal.note(f"{fault.namespace}'s disk: {what}")
        if fault.ailment is None:
            await self._fill(store, fault.back)
        else:
            await self._ail(store, fault.ailment, fault.back)
        self.recorder.note_return(noted)
        self.journal.note(f"{fault.namespace}'s disk is well")

    async def _fill(self, store: DiskBroker, back: float) -> None:
        refused = store.refused
        store.has_room = False
        await trio.sleep_until(back)
        store.has_room = True
        await trio.sleep(LOOKED)
        self.journal.seen["a store refused for want of room"] += store.refused - refused

    async def _ail(self, store: DiskBroker, ailment: Ailment, back: float) -> None:
        strokes = store.strokes
        store.ailment = ailment
        with trio.move_on_at(back):
            await store.failed.wait()
        if store.strokes > strokes:
            self.journal.seen[f"a disk failed: {ailment.name}"] += 1
        store.ailment = None
        if store.failed.is_set():
            self.journal.note("the store has failed")
            await trio.sleep(self.rng.uniform(0.0, 1.0))  # it refuses all until its process ends
            self.namespace.crash()
            store.start_again()
            self.journal.seen["a store was started again"] += 1
            await trio.sleep_until(back)
            self.namespace.restart()
