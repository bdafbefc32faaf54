"""
Request and reply over a pair of queues; a request may consist of several slices, whose replies
belong together.

    client     Requester.ask, scatter   request queue   ->  replying(handler)     worker
    client     its reply queue          <-   the reply; its correlation id is the request's id
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar

import attrs
import trio
from attrs import validators

from gateway.domain.entity import EntityPath
from gateway.domain.errors import Busy, InvalidRequest, PreconditionFailed
from gateway.domain.message import DeadLetter, Message, Settlement
from gateway.listening.items import Format, Item
from gateway.listening.job import Handler
from gateway.listening.listener import QueueListener
from gateway.listening.options import ListenerOptions
from gateway.listening.stores.values import Store
from gateway.listening.submit import Submitter
from gateway.listening.triggers import Triggers
from gateway.ports import ABSENT, ANY, Broker, NewId, WallClock

Q = TypeVar("Q")  # the request's type
A = TypeVar("A")  # the reply's type

NO_REPLY_QUEUE: Final = "NoReplyQueue"


@attrs.define(eq=False)
class _SliceReplies(Generic[A]):
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

    A reply that no caller waits for (any more) is completed and dropped, unless `store` keeps its
    request.
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
    store: Store | None = None  # of requests that survive a restart; see `kept`
    _pending: dict[str, _SliceReplies[A]] = attrs.field(factory=dict, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive replies until cancelled."""
        listener = QueueListener(
            broker=self.broker,
            queues=self.replies.name,
            format=self.format,
            handle=self._add_reply,
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
        return await self._gather(self.requests.new_id(), values, None)

    @asynccontextmanager
    async def kept(self, request_id: str, values: Sequence[Q]) -> AsyncIterator[Sequence[A]]:
        """
        As `scatter`, for a request that survives a restart: `store` keeps each reply from before it
        is completed until the block ends without an error.

        After a crash, or an error in the block, the caller asks again with the same id and the same
        values: replies that have come are there, and the other slices are submitted again.

        Raises:
            InvalidRequest: the id isn't usable, or its request had another number of slices.
            BrokerError: the store failed; as `scatter` besides.
        """
        store = self._kept_in()
        if not request_id or "/" in request_id:
            raise InvalidRequest(f"request id {request_id!r:.60}: a text without '/' expected")
        count, etag = await store.read(_place_of(request_id))
        if count is None:
            await store.write(_place_of(request_id), b"%d" % len(values), if_match=etag)
        elif int(count) != len(values):
            raise InvalidRequest(
                f"request {request_id} has {int(count)} slices, got {len(values)} values"
            )
        yield await self._gather(request_id, values, store)
        await store.write(_place_of(request_id), None, if_match=ANY)  # no reply is kept from now on
        for slice_id in _slices_of(request_id, len(values)):
            await store.write(_place_of(slice_id), None, if_match=ANY)

    async def _gather(
        self, request_id: str, values: Sequence[Q], store: Store | None
    ) -> Sequence[A]:
        if len(self._pending) + len(values) > self.max_pending:
            raise Busy(
                f"{self.max_pending} requests already wait for replies (max_pending)",
                retry_after=1.0,
            )
        slices = dict(zip(_slices_of(request_id, len(values)), values, strict=True))
        answers: _SliceReplies[A] = _SliceReplies(set(slices))
        self._pending.update(dict.fromkeys(slices, answers))
        try:
            for slice_id in slices if store is not None else ():
                assert store is not None
                reply, _ = await store.read(_place_of(slice_id))
                if reply is not None:
                    answers.add(slice_id, self.format.parse(Message(body=reply)))
            for slice_id in [each for each in slices if each in answers.missing]:
                await self.requests.submit(
                    slices[slice_id],
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

    async def _add_reply(self, reply: Item[A]) -> None:
        slice_id = str(reply.message.correlation_id)
        if self.store is not None:
            await self._keep(self.store, slice_id, reply)
        if slice_id in self._pending:
            self._pending[slice_id].add(slice_id, reply.value)

    async def _keep(self, store: Store, slice_id: str, reply: Item[A]) -> None:
        """Store the first reply to each slice of a kept request."""
        request_id = slice_id.rpartition("/")[0]
        if (await store.read(_place_of(request_id)))[0] is None:
            return
        body = self.format.build(reply.value).body
        assert isinstance(body, bytes), "formats write bytes"
        try:
            etag = await store.write(_place_of(slice_id), body, if_match=ABSENT)
        except PreconditionFailed:  # a second reply
            return
        if (await store.read(_place_of(request_id)))[0] is None:  # the request has ended meanwhile
            with suppress(PreconditionFailed):
                await store.write(_place_of(slice_id), None, if_match=etag)

    def _kept_in(self) -> Store:
        if self.store is None:
            raise InvalidRequest("this requester has no store to keep requests in")
        return self.store


def _slices_of(request_id: str, count: int) -> list[str]:
    return [f"{request_id}/{number}" for number in range(count)]


def _place_of(name: str) -> str:
    """The key of a request, or of a slice's reply, in a store that has other values too."""
    return f"pairgate-requests/{name}"


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
