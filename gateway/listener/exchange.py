"""
Request and reply over a pair of queues; a request may consist of several slices, whose replies
belong together.

    client     Requester.ask, scatter   request queue   ->  replying(handler)     worker
    client     its reply queue          <-   the reply; its correlation id is the request's id
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import attrs
import trio
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy
from gateway.domain.message import DeadLetter, Settlement
from gateway.listener.items import Format, Item
from gateway.listener.job import Handler
from gateway.listener.listener import QueueListener
from gateway.listener.options import ListenerOptions
from gateway.listener.submit import Submitter
from gateway.listener.triggers import Triggers
from gateway.ports import Broker, NewId, WallClock

Q = TypeVar("Q")  # the request's type
A = TypeVar("A")  # the reply's type

NO_REPLY_QUEUE: Final = "NoReplyQueue"


@attrs.define(eq=False)
class _Answers(Generic[A]):
    """The replies to the slices of one request."""

    missing: set[str]
    values: dict[str, A] = attrs.field(factory=dict)
    complete: trio.Event = attrs.field(factory=trio.Event)

    def add(self, slice_id: str, value: A) -> None:
        self.values[slice_id] = value
        self.missing.discard(slice_id)
        if not self.missing:
            self.complete.set()


@attrs.define(eq=False, kw_only=True)
class Requester(Generic[Q, A]):
    """
    Sends requests and waits for replies on `replies`: a queue that no other requester uses. Needs
    `run`.

    A reply that no caller waits for (any more) is completed and dropped.
    """

    requests: Submitter[Q]
    replies: EntityPath
    broker: Broker
    format: Format[A]
    clock: WallClock
    rng: random.Random
    options: ListenerOptions = attrs.field(factory=ListenerOptions)
    triggers: Triggers | None = None
    account: str = ""
    # Slices that wait for their replies at once.
    max_pending: int = attrs.field(default=1000, validator=validators.ge(1))
    _pending: dict[str, _Answers[A]] = attrs.field(factory=dict, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive replies until cancelled."""
        listener = QueueListener(
            broker=self.broker,
            queues=self.replies.name,
            format=self.format,
            handle=self._take,
            clock=self.clock,
            rng=self.rng,
            options=self.options,
            triggers=self.triggers,
            account=self.account,
        )
        await listener.run(task_status=task_status)

    async def ask(self, value: Q) -> A:
        """Return the reply; the deadline is the caller's. Raises as `scatter`."""
        return (await self.scatter([value]))[0]

    async def scatter(self, values: Sequence[Q]) -> Sequence[A]:
        """
        Return the replies to all slices of a request, in the order of the slices. After a
        cancellation, submitted slices are handled nevertheless.

        Raises:
            SubmitError: a slice couldn't be submitted; those before it were.
            Busy: too many slices wait for replies.
        """
        await trio.lowlevel.checkpoint()
        if len(self._pending) + len(values) > self.max_pending:
            raise Busy(
                f"{self.max_pending} requests already wait for replies (max_pending)",
                retry_after=1.0,
            )
        request_id = self.requests.new_id()
        slices = {f"{request_id}/{number}": value for number, value in enumerate(values)}
        answers: _Answers[A] = _Answers(set(slices))
        self._pending.update(dict.fromkeys(slices, answers))
        try:
            for slice_id, value in slices.items():
                await self.requests.submit(
                    value,
                    message_id=slice_id,
                    request_id=request_id,
                    reply_to=self.replies.name,
                )
            if slices:
                await answers.complete.wait()
        finally:
            for slice_id in slices:
                self._pending.pop(slice_id, None)
        return [answers.values[slice_id] for slice_id in slices]

    async def _take(self, reply: Item[A]) -> None:
        await trio.lowlevel.checkpoint()
        slice_id = str(reply.message.correlation_id)
        if slice_id in self._pending:
            self._pending[slice_id].add(slice_id, reply.value)


def replying(
    work: Callable[[Item[Q]], Awaitable[A]],
    *,
    broker: Broker,
    format: Format[A],  # noqa: A002 named as everywhere in this package
    new_id: NewId,
    triggers: Triggers | None = None,
) -> Handler[Q]:
    """
    A handler that sends the result of `work` to the queue that the request names, and completes the
    request only then. A request that is delivered twice is answered twice, with the same message
    id; if the request has no id itself, with a new id each time.
    """

    async def handle(request: Item[Q]) -> Settlement | None:
        message = request.message
        if not message.reply_to:
            await trio.lowlevel.checkpoint()
            return DeadLetter(reason=NO_REPLY_QUEUE, description="the request names no reply queue")
        answer = await work(request)
        replies = Submitter(
            broker=broker,
            queue=message.reply_to,
            format=format,
            new_id=new_id,
            account=request.account,
            triggers=triggers,
        )
        is_named = message.message_id is not None
        await replies.submit(
            answer,
            message_id=f"{message.message_id}/reply" if is_named else None,
            request_id=request.request_id,
            correlation_id=str(message.message_id) if is_named else None,
        )
        return None

    return handle
