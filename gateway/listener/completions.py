"""
Completes what handlers have done; where the namespace can, what is done at one moment in one step.

What is done is told once at least, or it would be done twice: so nobody who waits here is
cancelled, and there is a limit to it.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import SettlesMany
from gateway.domain.errors import BrokerError, NotSupported, OutcomeUnknown
from gateway.domain.message import Complete, Delivery
from gateway.ports import Receiver

_DONE: Final = Complete()


@attrs.define(eq=False)
class _Completion:
    """One that is waited for."""

    delivery: Delivery
    task: trio.lowlevel.Task | None = None  # to be woken with the verdict; None: it leads
    verdict: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class Completions:
    """Those of one receiver. `limit`: seconds that an answer may take."""

    receiver: Receiver
    limit: float
    _many: SettlesMany | None = attrs.field(init=False)
    _next: list[_Completion] = attrs.field(factory=list, init=False)  # the first of them leads

    def __attrs_post_init__(self) -> None:
        self._many = self.receiver if isinstance(self.receiver, SettlesMany) else None

    async def complete(self, delivery: Delivery) -> BrokerError | None:
        """
        Return the verdict: None when the namespace has done it, `OutcomeUnknown` when nobody
        answered in time. A cancellation comes after that.
        """
        if self._many is None:
            return await self._complete_alone(delivery)
        completion = _Completion(delivery)
        self._next.append(completion)
        if self._next[0] is completion:
            await self._lead()
        else:
            completion.task = trio.lowlevel.current_task()
            # The leader's limit is ours; a shield for each message would be a scope for each.
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return completion.verdict

    async def _lead(self) -> None:
        """Complete what has come by the next tick, and wake who waits for it."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        batch, self._next = self._next, []
        verdicts: Sequence[BrokerError | None] = [self._no_answer()] * len(batch)
        try:
            if len(batch) == 1:
                verdicts = [await self._complete_alone(batch[0].delivery)]
            else:
                with trio.move_on_after(self.limit, shield=True):
                    verdicts = await self._complete_all([each.delivery for each in batch])
        finally:
            for each, verdict in zip(batch, verdicts, strict=True):
                each.verdict = verdict
                if each.task is not None:
                    trio.lowlevel.reschedule(each.task)

    async def _complete_all(self, deliveries: Sequence[Delivery]) -> Sequence[BrokerError | None]:
        if self._many is not None:
            try:
                return await self._many.settle_many([(each, _DONE) for each in deliveries])
            except NotSupported:
                self._many = None  # one that wraps another finds out by and by
            except BrokerError as error:
                return [error] * len(deliveries)
        verdicts: list[BrokerError | None] = [None] * len(deliveries)

        async def complete(index: int, delivery: Delivery) -> None:
            verdicts[index] = await self._complete_alone(delivery)

        async with trio.open_nursery() as nursery:
            for index, delivery in enumerate(deliveries):
                nursery.start_soon(complete, index, delivery)
        return verdicts

    async def _complete_alone(self, delivery: Delivery) -> BrokerError | None:
        with trio.move_on_after(self.limit, shield=True):
            try:
                await self.receiver.settle(delivery, _DONE)
            except BrokerError as error:
                return error
            return None
        return self._no_answer()

    def _no_answer(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"no answer to a settlement within {self.limit:g} s")
