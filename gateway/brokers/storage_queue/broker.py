"""
A namespace in Azure Storage: its queues, or those of Azurite or of another Pairgate.

A Storage queue carries text only: see `wire.storage_queue.body` for the rest of a message.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import MappingProxyType
from typing import Final, Self, cast

import attrs
import trio

from gateway.brokers.entra.tokens import AccessTokens
from gateway.brokers.meter import Meter
from gateway.brokers.storage_queue.arrivals import Arrivals
from gateway.brokers.storage_queue.busy import BusyRows
from gateway.brokers.storage_queue.deliveries import Numbers, peeked, write_token
from gateway.brokers.storage_queue.names import POISON, beginnings, entity_of, queue_name
from gateway.brokers.storage_queue.options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue.peer import AccountQueue, StorageAccountPeer
from gateway.brokers.storage_queue.poison import PoisonQueue
from gateway.brokers.storage_queue.receiver import MAX_KEPT, StorageQueueReceiver
from gateway.capabilities.receipts import record_sent
from gateway.domain.backlog import is_of_pair
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties, first_lost
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
)
from gateway.domain.message import Delivery, Message, ReceiveMode, reason_in
from gateway.net.http.client import HttpClient, HttpClientOptions
from gateway.net.tls import TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire.http.hardened_xml import MAX_BYTES
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.body import MAX_ENCODED, build_put, parse_item
from gateway.wire.storage_queue.errors import fails
from gateway.wire.storage_queue.metadata import KEEPS, build_metadata, parse_metadata

CANNOT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sessions": "a session id travels with its message, but no receiver can hold a session",
        "strict order": "nearly the order of the sends; abandoned messages go behind the rest",
        "duplicate detection": "consumers must be idempotent",
        "deferral": "refused",
        "cancelling of a schedule": "refused; a scheduled message is delivered when it is due",
        "dead-lettering of expired messages": "the service deletes them",
        "topics": "queues only",
        "peek beyond the first 32 messages": "locked and scheduled messages aren't shown, either",
        "conditional changes of a queue": "the last writer wins",
        "long polls": "receivers ask again and again, after longer and longer pauses",
    }
)
"""The operations that this kind of namespace can't do, each with its substitute."""

_CLOSE_TIMEOUT: Final = 5.0  # for the locks that are released at the end


def open_namespace(
    rest: str,
    options: StorageQueueNamespaceOptions,
    clock: WallClock,
    rng: random.Random,
    access: AccessTokens | None = None,
) -> "StorageQueueBroker":
    """
    Make the adapter for `storage-queue:` with a connection string; `rest` is the part after the
    scheme. `access`: the tokens of `options.credential`, if there is one.

    Raises:
        InvalidRequest: the connection string or the key is missing or wrong, or a certificate can't
            be read.
    """
    connection = options.connection(rest)
    try:
        tls = client_context(options.tls) if connection.secure else None
    except TlsFileError as error:
        raise InvalidRequest(f"tls: {error}") from error
    client = HttpClient(
        connection.host,
        connection.port,
        tls=tls,
        options=HttpClientOptions(
            max_connections=options.max_connections,
            connect_timeout=options.connect_timeout,
            idle_timeout=options.idle_timeout,
            max_body=MAX_BYTES,
            fails=fails,
        ),
    )
    account = StorageAccountPeer(
        ask=client.request, connection=connection, clock=clock, access=access
    )
    return StorageQueueBroker(
        client=client, account=account, access=access, options=options, clock=clock, rng=rng
    )


@attrs.define(eq=False, kw_only=True)
class StorageQueueBroker:
    """`ports.Broker`, with `Clears`, `DeletesSent`, `Peeks`, `Updates`. Connects on first use."""

    _client: HttpClient | None
    _account: StorageAccountPeer
    _access: AccessTokens | None = None
    _options: StorageQueueNamespaceOptions
    _clock: WallClock
    _rng: random.Random
    _max_kept: int = MAX_KEPT  # bytes of the messages that a receiver holds
    _numbers: Numbers = attrs.field(init=False)
    _busy: BusyRows = attrs.field(init=False)
    _arrivals: Arrivals = attrs.field(factory=Arrivals, init=False)
    _opened: AsyncExitStack = attrs.field(factory=AsyncExitStack, init=False)

    def __attrs_post_init__(self) -> None:
        self._numbers = Numbers(self._clock, self._rng)
        self._busy = BusyRows(rng=self._rng)

    async def __aenter__(self) -> Self:
        if self._access is not None:
            await self._opened.enter_async_context(self._access)
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await trio.lowlevel.checkpoint()
            if self._client is not None:
                await self._client.aclose()
        await self._opened.aclose()  # outside of the scope above, which is younger than it

    @property
    def meter(self) -> Meter:
        return self._account.meter

    # --- messages

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """
        As `Broker.send`, one request per message: a failure after the first accepted message is an
        unknown outcome.

        A scheduled date more than seven days away is kept in the message: a receiver that gets the
        message earlier hides it again.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a queue expected, not its dead-letter queue")
        queue, now = self._queue_of(entity), self._clock()
        keep_ids = self._options.keep_ids
        puts = [build_put(queue.name, message, now, keep_ids=keep_ids) for message in messages]
        accepted = 0
        try:
            for put in puts:
                answer = await queue.peer.run(put)
                accepted += 1
            if len(puts) == 1 and puts[0].body == messages[0].body:  # a text alone
                record_sent(write_token(*_receipt_in(answer)))
        except BrokerError as error:
            if not accepted:
                if isinstance(error, Busy):
                    raise self._busy.refused(queue.name, error) from error
                raise
            raise OutcomeUnknown(
                f"{accepted} of {len(puts)} messages were accepted, then: {error}"
            ) from error
        finally:
            if accepted:
                self._busy.accepted(queue.name)
                self._arrivals.notify(entity.key, accepted)

    async def send_deletable(self, entity: EntityPath, message: Message) -> object:
        """As `DeletesSent.send_deletable`: the service's answer has a pop receipt."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        put = build_put(queue.name, message, self._clock(), keep_ids=self._options.keep_ids)
        answer = await queue.peer.run(put)
        self._arrivals.notify(entity.key, 1)
        return _receipt_in(answer)

    async def delete_sent(self, entity: EntityPath, receipt: object) -> None:
        """As `DeletesSent.delete_sent`."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        message_id, pop_receipt = cast(tuple[str, str], receipt)
        await queue.peer.run(
            storage.DeleteMessage(queue=queue.name, message_id=message_id, pop_receipt=pop_receipt)
        )

    async def dead_letter(self, entity: EntityPath, message: Message) -> None:
        """As `WritesDeadLetters.dead_letter`; without the reason if there is no room for it."""
        await trio.lowlevel.checkpoint()
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a queue expected, not its dead-letter queue")
        await self._metadata_of(self._queue_of(entity))  # a missing queue gets no poison queue
        await self._poison_of(entity).put(message, reason_in(message))

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[StorageQueueReceiver]:
        """As `Broker.open_receiver`. The queue isn't checked before the first receive."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        with self._arrivals.of(entity.key) as notifier:
            receiver = StorageQueueReceiver(
                queue=queue,
                poison=None if _has_dead_letters(queue) else self._poison_of(entity),
                mode=mode,
                poll=self._options.poll,
                notifier=notifier,
                numbers=self._numbers,
                clock=self._clock,
                rng=self._rng,
                max_kept=self._max_kept,
            )
            async with receiver.looks:
                try:
                    yield receiver
                finally:
                    with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                        await receiver.give_back()

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`, but only among the first 32 available messages."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        found: list[Delivery] = []
        answer = await queue.peer.run(
            storage.PeekMessages(queue=queue.name, limit=storage.MAX_MESSAGES)
        )
        for item in answer.items if isinstance(answer, storage.Messages) else ():
            number = self._numbers.of(queue.name, item.message_id)
            if number >= from_sequence:
                found.append(peeked(item, parse_item(item), number))
        return found[:limit]

    async def clear_queue(self, entity: EntityPath) -> None:
        """As `Clears.clear_queue`."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        await queue.peer.run(storage.ClearMessages(queue=queue.name))

    # --- queues

    async def probe(self, entity: EntityPath) -> None:
        """
        As `Broker.probe`: reads the queue's metadata.

        Without the right to read it, the refusal shows only that the service answers.
        """
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        try:
            await queue.peer.run(storage.GetMetadata(queue=queue.name))
        except NotAuthorized as error:
            if "AuthorizationPermissionMismatch" not in str(error):
                raise

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`; locked and scheduled messages count as active."""
        await trio.lowlevel.checkpoint()
        queue = self._queue_of(entity)
        found = await self._metadata_of(queue)
        dead: int | None = 0
        if not _has_dead_letters(queue):
            with suppress(EntityNotFound):
                dead = (await self._metadata_of(self._dead_letters_of(entity))).count
        return EntityInfo(
            path=entity,
            properties=parse_metadata(found.metadata),
            max_message_size=MAX_ENCODED,
            active=found.count,
            dead_lettered=dead,
        )

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`; dead letters are counted with their queue."""
        await trio.lowlevel.checkpoint()
        names: set[str] = set()
        for beginning in beginnings(prefix):
            names.update(await self._names(beginning))
        keys = {found.key for name in names if (found := entity_of(name)) is not None}
        wanted = sorted(key for key in keys if key.startswith(prefix.lower()))
        infos: list[EntityInfo] = []
        for key in wanted[skip : skip + top]:
            with suppress(EntityNotFound):  # deleted meanwhile
                infos.append(await self.inspect(EntityPath(key)))
        return infos

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`: creates the queue for dead letters, too. The queue exists if
        neither is missing.

        Raises:
            NotSupported: names the property. The service can't dead-letter expired messages, and
                has no size of a queue; for the queues of a pair both are ignored, since nothing
                expires there and an account is larger.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a dead-letter queue is created with its queue")
        if is_of_pair(entity):
            properties = attrs.evolve(
                properties,
                dead_lettering_on_expiration=False,
                max_size_in_megabytes=QueueProperties().max_size_in_megabytes,
            )
        metadata = _metadata(entity, properties)
        queue = self._queue_of(entity)
        is_new = False
        if not _has_dead_letters(queue):
            is_new = await _made(self._dead_letters_of(entity), {})
        is_new |= await _made(queue, metadata)
        if not is_new:
            raise EntityExists(f"{entity}: a queue of this name exists already")
        return await self.inspect(entity)

    async def update_queue(
        self, entity: EntityPath, properties: QueueProperties, *, if_version: int | None = None
    ) -> EntityInfo:
        """
        As `Updates.update_queue`. A receiver that is open keeps the properties that it has read.

        Raises:
            NotSupported: there is an `if_version`: the service's queues have no versions.
        """
        if if_version is not None:
            raise NotSupported(f"{entity}: a queue of Azure Storage has no versions")
        if entity.is_dead_letter:
            raise EntityNotFound(f"{entity}: a queue expected, not its dead-letter queue")
        queue, metadata = self._queue_of(entity), _metadata(entity, properties)
        await queue.peer.run(storage.SetMetadata(queue=queue.name, metadata=metadata))
        return await self.inspect(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`: deletes the dead letters, too."""
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a dead-letter queue is deleted with its queue")
        queue = self._queue_of(entity)
        await queue.peer.run(storage.DeleteQueue(queue=queue.name))
        if not _has_dead_letters(queue):
            dead_letters = self._dead_letters_of(entity)
            with suppress(EntityNotFound):
                await dead_letters.peer.run(storage.DeleteQueue(queue=dead_letters.name))

    async def _names(self, beginning: str) -> set[str]:
        """The queues of the account whose names have that beginning."""
        await trio.lowlevel.checkpoint()
        names: set[str] = set()
        marker = ""
        while True:
            answer = await self._account.run(storage.ListQueues(prefix=beginning, marker=marker))
            if not isinstance(answer, storage.QueueList):
                return names
            names.update(item.name for item in answer.items)
            marker = answer.next_marker
            if not marker:
                return names

    async def _metadata_of(self, queue: AccountQueue) -> storage.QueueMetadata:
        answer = await queue.peer.run(storage.GetMetadata(queue=queue.name))
        assert isinstance(answer, storage.QueueMetadata), "the codec reads it so"
        return answer

    def _queue_of(self, entity: EntityPath) -> AccountQueue:
        """
        The entity's queue.

        Raises:
            InvalidRequest: the entity can't have a queue.
        """
        return AccountQueue(self._account, queue_name(entity))

    def _dead_letters_of(self, entity: EntityPath) -> AccountQueue:
        return self._queue_of(entity.dead_letter)

    def _poison_of(self, entity: EntityPath) -> PoisonQueue:
        return PoisonQueue(queue=self._dead_letters_of(entity), clock=self._clock)


def _metadata(entity: EntityPath, properties: QueueProperties) -> dict[str, str]:
    """
    The metadata of a queue with these properties.

    Raises:
        NotSupported: names the property that a queue of the service can't keep.
        InvalidRequest: names the property and the limit.
    """
    usual = EntityInfo(path=entity, properties=parse_metadata({}), max_message_size=MAX_ENCODED)
    lost = first_lost(properties, KEEPS, usual)
    if lost is not None:
        raise NotSupported(f"{lost}: a queue of Azure Storage can't keep this value; leave it out")
    return build_metadata(properties)


async def _made(queue: AccountQueue, metadata: Mapping[str, str]) -> bool:
    """Create the queue; return False if it exists already."""
    await trio.lowlevel.checkpoint()
    try:
        answer = await queue.peer.run(
            storage.CreateQueue(queue=queue.name, metadata=dict(metadata))
        )
    except EntityExists:
        return False
    return isinstance(answer, storage.Created)


def _has_dead_letters(queue: AccountQueue) -> bool:
    return queue.name.endswith(POISON)


def _receipt_in(answer: storage.Answer) -> tuple[str, str]:
    """The id and the pop receipt of the message that was put; empty: the service tells none."""
    items = answer.items if isinstance(answer, storage.Messages) else ()
    return next(((each.message_id, each.pop_receipt or "") for each in items), ("", ""))
