"""A namespace that is neither healthy nor down: it executes its requests, and answers late."""

import attrs
import trio

from tests.harness.faults import T, Work


@attrs.frozen
class AnswerLate:
    """Does the operation at once, and answers `seconds` later."""

    seconds: float

    async def strike(self, work: Work[T], nursery: trio.Nursery) -> T:
        answer = await work()
        await trio.sleep(self.seconds)
        return answer
