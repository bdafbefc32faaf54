"""
A namespace in Azure Storage: its queues, or those of Azurite, or of another Pairgate.

A message is a text there: `wire.storage_queue_body` says how the rest travels. An entity may have
several queues, its shards, on several accounts: one queue takes some 2,000 requests a second.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType, TracebackType
from typing import Final, Self

import attrs
import trio

from gateway.brokers.meter import Meter
from gateway.brokers.storage_queue_arrivals import Arrivals
from gateway.brokers.storage_queue_deliveries import Numbers, shown
from gateway.brokers.storage_queue_names import POISON, beginnings, entity_of, queue_name
from gateway.brokers.storage_queue_options import StorageQueueNamespaceOptions
from gateway.brokers.storage_queue_peer import Shard, StorageAccountPeer
from gateway.brokers.storage_queue_poison import PoisonQueue
from gateway.brokers.storage_queue_receiver import StorageQueueReceiver
from gateway.domain.backlog import is_backlog
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    Outcome,
    OutcomeUnknown,
)
from gateway.domain.message import Delivery, Leg, Message, ReceiveMode
from gateway.net.http_client import HttpClient, HttpClientOptions
from gateway.net.tls import TlsFileError, client_context
from gateway.ports import WallClock
from gateway.wire import storage_queue_operations as storage
from gateway.wire.storage_queue_body import MAX_ENCODED, build_put, parse_item
from gateway.wire.storage_queue_metadata import build_metadata, parse_metadata
from gateway.wire.storage_queue_xml import MAX_ANSWER

CANNOT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sessions": "a session id travels with its message, but no receiver can hold a session",
        "strict order": "nearly the order of the sends; what is abandoned goes behind the rest",
        "duplicate detection": "consumers must be idempotent",
        "deferral": "refused",
        "cancelling of a schedule": "what is scheduled comes",
        "dead-lettering of what expires": "it's gone",
        "topics": "queues only",
        "peek beyond the first 32 messages": "locked and scheduled ones aren't shown either",
        "changes of a queue": "make another one",
        "long polls": "receivers ask again and again, after longer and longer pauses",
    }
)
"""What this kind of namespace can't do, and what happens instead."""

_CLOSE_TIMEOUT: Final = 5.0


def open_namespace(
    rest: str, options: StorageQueueNamespaceOptions, clock: WallClock, rng: random.Random
) -> "StorageQueueBroker":
    """
    The adapter for `storage-queue:` with a connection string; `rest` is what follows the scheme.

    Raises:
        InvalidRequest: the connection string or the key is missing or wrong, or a certificate
            can't be read.
    """
    clients, accounts, meter = [], [], Meter()
    for connection in options.connections(rest):
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
                max_body=MAX_ANSWER,
            ),
        )
        clients.append(client)
        accounts.append(
            StorageAccountPeer(ask=client.request, connection=connection, clock=clock, meter=meter)
        )
    return StorageQueueBroker(
        clients=clients, accounts=accounts, options=options, clock=clock, rng=rng
    )


@attrs.define(eq=False, kw_only=True)
class StorageQueueBroker:
    """`ports.Broker`, with `Peeks`. It connects when it is first used."""

    _clients: Sequence[HttpClient]
    _accounts: Sequence[StorageAccountPeer]
    _options: StorageQueueNamespaceOptions
    _clock: WallClock
    _rng: random.Random
    _numbers: Numbers = attrs.field(init=False)
    _arrivals: Arrivals = attrs.field(factory=Arrivals, init=False)

    def __attrs_post_init__(self) -> None:
        self._numbers = Numbers(self._clock, self._rng)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
            await trio.lowlevel.checkpoint()
            for client in self._clients:
                await client.aclose()

    @property
    def meter(self) -> Meter:
        """All accounts have the same one."""
        return self._accounts[0].meter

    # Messages.

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> Leg:
        """
        As `Broker.send`, message by message: after the first that was accepted, a failure is an
        unknown outcome. Of several shards each gets a part of a batch, all at the same time.

        A date that is further away than seven days is kept: who takes the message before hides
        it again.
        """
        await trio.lowlevel.checkpoint()
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: nobody sends to a dead-letter queue")
        shards = self._shards_of(entity)
        first, now = self._rng.randrange(len(shards)), self._clock()
        parts: dict[Shard, list[storage.PutMessage]] = {}
        for number, message in enumerate(messages):
            shard = shards[(first + number) % len(shards)]
            put = build_put(shard.queue, message, now, keep_ids=self._options.keep_ids)
            parts.setdefault(shard, []).append(put)
        sending = _Sending()
        if len(parts) == 1:
            await sending.put_all(*parts.popitem())
        async with trio.open_nursery() as nursery:
            for shard, puts in parts.items():
                nursery.start_soon(sending.put_all, shard, puts)
        if sending.accepted:
            self._arrivals.ring(entity.key, sending.accepted)
        sending.judge(len(messages))
        return Leg.PRIMARY

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[StorageQueueReceiver]:
        """As `Broker.open_receiver`. Nothing is asked before the first receive."""
        await trio.lowlevel.checkpoint()
        shards = self._shards_of(entity)
        with self._arrivals.of(entity.key) as bell:
            receiver = StorageQueueReceiver(
                shards=shards,
                poison=None if _has_dead_letters(shards) else self._poison_of(entity),
                mode=mode,
                poll=self._options.poll,
                bell=bell,
                numbers=self._numbers,
                clock=self._clock,
                rng=self._rng,
            )
            try:
                yield receiver
            finally:
                with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                    await receiver.give_back()

    async def peek(
        self, entity: EntityPath, *, from_sequence: int = 0, limit: int = 1
    ) -> Sequence[Delivery]:
        """As `Peeks.peek`, but only of the first 32 of each shard that anybody could take."""
        await trio.lowlevel.checkpoint()
        found: list[Delivery] = []
        for shard in self._shards_of(entity):
            answer = await shard.peer.run(
                storage.PeekMessages(queue=shard.queue, limit=storage.MAX_MESSAGES)
            )
            for item in answer.items if isinstance(answer, storage.Messages) else ():
                number = self._numbers.of(shard.queue, item.message_id)
                if number >= from_sequence:
                    found.append(shown(item, parse_item(item), number))
        return found[:limit]

    # Queues.

    async def probe(self, entity: EntityPath) -> None:
        """
        As `Broker.probe`: reads the metadata of each shard.

        Who may only send is refused that; then the service answers, and no more is known.
        """
        await trio.lowlevel.checkpoint()
        for shard in self._shards_of(entity):
            try:
                await shard.peer.run(storage.GetMetadata(queue=shard.queue))
            except NotAuthorized as error:
                if "AuthorizationPermissionMismatch" not in str(error):
                    raise

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`; what is locked or scheduled counts as active."""
        await trio.lowlevel.checkpoint()
        shards = self._shards_of(entity)
        found = [await self._metadata_of(shard) for shard in shards]
        dead = 0
        if not _has_dead_letters(shards):
            with suppress(EntityNotFound):
                dead = (await self._metadata_of(self._dead_letters_of(entity))).count
        return EntityInfo(
            path=entity,
            properties=parse_metadata(found[0].metadata),
            max_message_size=MAX_ENCODED,
            active=sum(each.count for each in found),
            dead_lettered=dead,
        )

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`; dead letters and further shards are counted with their queue."""
        await trio.lowlevel.checkpoint()
        names: set[str] = set()
        for beginning in beginnings(prefix):
            names.update(await self._names(beginning))
        keys = {found.key for name in names if (found := entity_of(name)) is not None}
        wanted = sorted(key for key in keys if key.startswith(prefix.lower()))
        infos: list[EntityInfo] = []
        for key in wanted[skip : skip + top]:
            with suppress(EntityNotFound):  # deleted meanwhile, or a shard of it is missing
                infos.append(await self.inspect(EntityPath(key)))
        return infos

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """
        As `Broker.create_queue`: with all shards, and the queue for its dead letters. It exists if
        nothing of that is missing.

        Raises:
            NotSupported: names the property. That what expires is dead-lettered can't be had; a
                backlog queue needn't, since nothing expires there.
        """
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a dead-letter queue is made with its queue")
        if is_backlog(entity):
            properties = attrs.evolve(properties, dead_lettering_on_expiration=False)
        metadata = build_metadata(properties)
        shards = self._shards_of(entity)
        is_new = False
        if not _has_dead_letters(shards):
            is_new = await _made(self._dead_letters_of(entity), {})
        for shard in reversed(shards):  # the first one last: it stands for the queue
            is_new |= await _made(shard, metadata)
        if not is_new:
            raise EntityExists(f"there is a queue {entity}")
        return await self.inspect(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`: with all shards and its dead letters."""
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a dead-letter queue is deleted with its queue")
        first, *others = self._shards_of(entity)
        await first.peer.run(storage.DeleteQueue(queue=first.queue))
        if not _has_dead_letters([first]):
            others.append(self._dead_letters_of(entity))
        for shard in others:
            with suppress(EntityNotFound):
                await shard.peer.run(storage.DeleteQueue(queue=shard.queue))

    async def _names(self, beginning: str) -> set[str]:
        """The queues of the first account, on which each entity has its first shard."""
        await trio.lowlevel.checkpoint()
        names: set[str] = set()
        marker = ""
        while True:
            answer = await self._accounts[0].run(
                storage.ListQueues(prefix=beginning, marker=marker)
            )
            if not isinstance(answer, storage.QueueList):
                return names
            names.update(item.name for item in answer.items)
            marker = answer.next_marker
            if not marker:
                return names

    async def _metadata_of(self, shard: Shard) -> storage.QueueMetadata:
        answer = await shard.peer.run(storage.GetMetadata(queue=shard.queue))
        assert isinstance(answer, storage.QueueMetadata), "the codec reads it so"
        return answer

    def _shards_of(self, entity: EntityPath) -> list[Shard]:
        """
        Its queues, the first of which has its own name and is on the first account.

        Raises:
            InvalidRequest: it can't have any.
        """
        name = queue_name(entity)
        if name.endswith(POISON):
            return [Shard(self._accounts[0], name)]
        accounts = self._accounts
        return [
            Shard(accounts[number % len(accounts)], queue_name(entity, number))
            for number in range(self._options.shards)
        ]

    def _dead_letters_of(self, entity: EntityPath) -> Shard:
        return Shard(self._accounts[0], queue_name(entity.dead_letter))

    def _poison_of(self, entity: EntityPath) -> PoisonQueue:
        return PoisonQueue(shard=self._dead_letters_of(entity), clock=self._clock)


@attrs.define(eq=False)
class _Sending:
    """What became of a batch."""

    accepted: int = 0
    errors: list[BrokerError] = attrs.field(factory=list)

    async def put_all(self, shard: Shard, puts: Sequence[storage.PutMessage]) -> None:
        """One after the other, until one fails."""
        await trio.lowlevel.checkpoint()
        for put in puts:
            try:
                await shard.peer.run(put)
            except BrokerError as error:
                self.errors.append(error)
                return
            self.accepted += 1

    def judge(self, wanted: int) -> None:
        """
        Raises:
            BrokerError: not all were accepted.
        """
        if not self.errors:
            return
        error = self.errors[0]
        unknown = [each for each in self.errors if each.outcome is Outcome.UNKNOWN]
        if self.accepted:
            raise OutcomeUnknown(
                f"{self.accepted} of {wanted} messages were accepted, then: {error}"
            ) from error
        raise unknown[0] if unknown else error


async def _made(shard: Shard, metadata: Mapping[str, str]) -> bool:
    """Whether the queue wasn't there."""
    await trio.lowlevel.checkpoint()
    try:
        answer = await shard.peer.run(
            storage.CreateQueue(queue=shard.queue, metadata=dict(metadata))
        )
    except EntityExists:
        return False
    return isinstance(answer, storage.Created)


def _has_dead_letters(shards: Sequence[Shard]) -> bool:
    return shards[0].queue.endswith(POISON)
