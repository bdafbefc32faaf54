"""
Completes handled messages; if the namespace can, all that are due at one moment in one step. A
completion is sent at least once, because the message would otherwise be handled twice: so a task
that waits for its completion isn't cancelled, and a timeout limits its wait.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.capabilities import SettlesMany
from gateway.capabilities.settling import settle_all, settle_one
from gateway.domain.errors import BrokerError, OutcomeUnknown
from gateway.domain.message import Complete, Delivery
from gateway.offering import offered
from gateway.ports import Receiver

_DONE: Final = Complete()


@attrs.define(eq=False)
class _Completion:
    """A completion that a task waits for."""

    delivery: Delivery
    task: trio.lowlevel.Task | None = None  # woken with the result; None: this task leads
    verdict: BrokerError | None = None


@attrs.define(eq=False, kw_only=True)
class Completions:
    """Completions of one receiver. `limit`: timeout of an answer in seconds."""

    receiver: Receiver
    limit: float
    _together: bool = attrs.field(init=False)
    # The first completion's task leads.
    _next: list[_Completion] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._together = offered(self.receiver, SettlesMany) is not None

    async def complete(self, delivery: Delivery) -> BrokerError | None:
        """
        Return None when the namespace has completed the message, else the error, `OutcomeUnknown`
        after a timeout. A cancellation takes effect after that.
        """
        if not self._together:
            return await self._complete_one(delivery)
        completion = _Completion(delivery)
        self._next.append(completion)
        if self._next[0] is completion:
            await self._lead()
        else:
            completion.task = trio.lowlevel.current_task()
            # The leader's timeout covers this task; a shield for each message would be a scope for
            # each.
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return completion.verdict

    async def _lead(self) -> None:
        """Complete all messages that are due by the next tick, and wake their tasks."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        batch, self._next = self._next, []
        # Also after a bug every waiting task gets a verdict.
        verdicts: Sequence[BrokerError | None] = [OutcomeUnknown("the settlement broke off")] * len(
            batch
        )
        try:
            if len(batch) == 1:
                verdicts = [await self._complete_one(batch[0].delivery)]
            else:
                with trio.CancelScope(shield=True):
                    verdicts = await settle_all(
                        self.receiver, [(each.delivery, _DONE) for each in batch], self.limit
                    )
        finally:
            for each, verdict in zip(batch, verdicts, strict=True):
                each.verdict = verdict
                if each.task is not None:
                    trio.lowlevel.reschedule(each.task)

    async def _complete_one(self, delivery: Delivery) -> BrokerError | None:
        return await settle_one(self.receiver, delivery, _DONE, self.limit, shield=True)
