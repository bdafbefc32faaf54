"""
A beanstalkd server as a namespace: `url = "beanstalkd://HOST:PORT"`. A tube is a queue.

A tube exists as long as it has a job or somebody uses it. So `create_queue` leaves a job in it that
nobody gets: it is buried, and the tube stays. Accepted is durable if the server runs with a binlog
that is synced at each write: `beanstalkd -b FOLDER -f 0`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil
from typing import Final, Self
from urllib.parse import urlsplit

import attrs
import trio
from attrs import validators

from gateway.brokers.lock_tokens import lock_tokens
from gateway.brokers.meter import Meter
from gateway.config.kinds import Address, Kind
from gateway.domain.backlog import is_of_pair
from gateway.domain.billing import Operation
from gateway.domain.entity import EntityInfo, EntityPath, QueueProperties, first_lost
from gateway.domain.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    MessageError,
    MessageTooLarge,
    NotSupported,
    OutcomeUnknown,
)
from gateway.domain.message import Message, ReceiveMode
from gateway.ports import NewId, WallClock
from gateway.wire.amqp.message import encode_message
from pairgate_beanstalkd.connection import Answer, Connection, Target, check, figures, put
from pairgate_beanstalkd.receiver import BeanstalkdReceiver

_LONGEST_NAME: Final = 200  # bytes (protocol.txt, "tube names")
_MARK: Final = b"pairgate: this tube is a queue"
_PORT: Final = 11300


@attrs.frozen(kw_only=True)
class BeanstalkdOptions:
    """The options of `[namespaces.NAME]` with a URL `beanstalkd://`."""

    # Seconds that a job is reserved for a receiver (its "time to run"), from one renewal to the
    # next.
    lock_duration: float = attrs.field(default=60.0, validator=validators.ge(1.0))
    # Seconds that a dial and a command may take.
    timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # Seconds between two looks into an empty tube, at most.
    poll_max: float = attrs.field(default=0.25, validator=validators.gt(0.0))


@attrs.define(eq=False, kw_only=True)
class BeanstalkdBroker:
    """`ports.Broker`. Connects at the first use."""

    target: Target
    options: BeanstalkdOptions
    clock: WallClock
    new_token: NewId
    meter: Meter = attrs.field(factory=Meter)
    _connection: Connection | None = attrs.field(default=None, init=False)
    _sending: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # `use`, then `put`
    _largest: int = attrs.field(default=0, init=False)  # bytes of a job, as the server says

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.aclose()

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        """As `Broker.send`: a job for each message, all in one write."""
        if entity.is_dead_letter:
            raise InvalidRequest(f"{entity}: a queue expected, not its dead-letter queue")
        jobs = [self._job_of(message) for message in messages]
        async with self._sending:
            connection = await self._connect()
            await check_tube(connection, entity)
            for job, _ in jobs:
                if len(job) > self._largest:
                    raise MessageTooLarge(
                        f"a message of {len(job)} bytes, at most {self._largest} expected"
                    )
            commands = [put(job, delay=delay, time_to_run=self._lock) for job, delay in jobs]
            _, *answers = await connection.ask(b"use %b\r\n" % tube_of(entity), *commands)
        self.meter.carried(Operation.SEND, len(jobs), sum(len(job) for job, _ in jobs))
        _check_all(answers)

    @asynccontextmanager
    async def open_receiver(
        self, entity: EntityPath, mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    ) -> AsyncIterator[BeanstalkdReceiver]:
        """As `Broker.open_receiver`, with a connection of its own."""
        connection = await Connection.open(self.target)
        try:
            await check_tube(connection, entity.parent)
            await connection.ask(b"watch %b\r\n" % tube_of(entity), b"ignore default\r\n")
            yield BeanstalkdReceiver(
                connection=connection,
                mode=mode,
                dead_letters=None if entity.is_dead_letter else tube_of(entity.dead_letter),
                lock=self._lock,
                poll_max=self.options.poll_max,
                clock=self.clock,
                new_token=self.new_token,
                meter=self.meter,
            )
        finally:
            await connection.aclose()

    async def probe(self, entity: EntityPath) -> None:
        """As `Broker.probe`."""
        await check_tube(await self._connect(), entity)

    async def inspect(self, entity: EntityPath) -> EntityInfo:
        """As `Broker.inspect`. The counts are exact."""
        connection = await self._connect()
        counts = await check_tube(connection, entity.parent)
        [answer] = await connection.ask(b"stats-tube %b\r\n" % tube_of(entity.dead_letter))
        dead = figures(answer)
        active = "current-jobs-ready", "current-jobs-reserved"
        return EntityInfo(
            path=entity,
            properties=QueueProperties(lock_duration=timedelta(seconds=self._lock)),
            max_message_size=self._largest,
            active=sum((dead if entity.is_dead_letter else counts).get(each, 0) for each in active),
            scheduled=counts["current-jobs-delayed"],
            dead_lettered=sum(dead.get(each, 0) for each in active),
        )

    async def list_queues(
        self, prefix: str = "", *, skip: int = 0, top: int = 100
    ) -> Sequence[EntityInfo]:
        """As `Broker.list_queues`."""
        connection = await self._connect()
        [answer] = await connection.ask(b"list-tubes\r\n")
        names = [line.removeprefix("- ") for line in answer.data.decode().splitlines()[1:]]
        queues = sorted(name for name in names if name != "default" and "$" not in name)
        found = [name for name in queues if name.lower().startswith(prefix.lower())]
        return [await self.inspect(EntityPath(name)) for name in found[skip : skip + top]]

    async def create_queue(self, entity: EntityPath, properties: QueueProperties) -> EntityInfo:
        """As `Broker.create_queue`. A tube has no properties: others than the usual are refused."""
        told = EntityInfo(
            path=entity, properties=QueueProperties(lock_duration=timedelta(seconds=self._lock))
        )
        lost = first_lost(properties, (), told)
        if lost is not None and not is_of_pair(entity):
            raise NotSupported(f"{lost}: beanstalkd's tubes don't have it")
        async with self._sending:
            connection = await self._connect()
            tube = tube_of(entity)
            if await _exists(connection, tube):
                raise EntityExists(f"{entity} exists")
            _, answer = await connection.ask(
                b"use %b\r\n" % tube, put(_MARK, delay=0, time_to_run=self._lock)
            )
            number = check(answer, b"INSERTED").number
            reserved, buried = await connection.ask(
                b"reserve-job %d\r\n" % number, b"bury %d 0\r\n" % number
            )
            check(reserved, b"RESERVED")
            check(buried, b"BURIED")
        return await self.inspect(entity)

    async def delete_queue(self, entity: EntityPath) -> None:
        """As `Broker.delete_queue`, job by job."""
        connection = await self._connect()
        await check_tube(connection, entity)
        for tube in (tube_of(entity.dead_letter), tube_of(entity)):
            await connection.ask(b"use %b\r\n" % tube)
            for state in (b"ready", b"delayed", b"buried"):
                while True:
                    [found] = await connection.ask(b"peek-%b\r\n" % state)
                    if found.word == b"NOT_FOUND":
                        break
                    await connection.ask(b"delete %d\r\n" % found.number)
        await connection.ask(b"use default\r\n")

    @property
    def _lock(self) -> int:
        return ceil(self.options.lock_duration)

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.is_over:
            self._connection = await Connection.open(self.target)
            [answer] = await self._connection.ask(b"stats\r\n")
            self._largest = figures(answer)["max-job-size"]
        return self._connection

    def _job_of(self, message: Message) -> tuple[bytes, int]:
        """The job of a message, and the seconds after which it is there."""
        try:
            job = encode_message(message)
        except MessageError as error:
            raise InvalidRequest(str(error)) from error
        if message.scheduled is None:
            return job, 0
        return job, max(0, ceil((message.scheduled - self.clock()).total_seconds()))


def tube_of(entity: EntityPath) -> bytes:
    """
    The tube of a queue. Case counts in tubes, and not in paths: it is the path in lower case.

    Raises:
        InvalidRequest: a tube can't have that name.
    """
    name = entity.key.encode("ascii")
    if len(name) > _LONGEST_NAME:
        raise InvalidRequest(f"entity name: at most {_LONGEST_NAME} bytes, got {len(name)}")
    return name.replace(b"~", b"+")  # a tube's name has no tilde, and an entity's has no plus


async def check_tube(connection: Connection, entity: EntityPath) -> dict[str, int]:
    """
    Return the figures of a queue's tube.

    Raises:
        EntityNotFound: there is no such tube.
    """
    [answer] = await connection.ask(b"stats-tube %b\r\n" % tube_of(entity))
    if answer.word == b"NOT_FOUND":
        raise EntityNotFound(f"{entity} doesn't exist")
    return dict(figures(check(answer, b"OK")))


async def _exists(connection: Connection, tube: bytes) -> bool:
    [answer] = await connection.ask(b"stats-tube %b\r\n" % tube)
    return answer.word != b"NOT_FOUND"


def _check_all(answers: Sequence[Answer]) -> None:
    """Raise the error of a batch: unknown, if only a part was accepted."""
    accepted = 0
    try:
        for answer in answers:
            check(answer, b"INSERTED")
            accepted += 1
    except BrokerError as error:
        if any(answer.word == b"INSERTED" for answer in answers):
            raise OutcomeUnknown(f"a part of {len(answers)} was accepted: {error}") from error
        raise


def _make(address: Address) -> BeanstalkdBroker:
    url, options = urlsplit(f"//{address.rest.lstrip('/')}"), address.options or BeanstalkdOptions()
    if not url.hostname:
        raise InvalidRequest(f"namespace {address.name}: beanstalkd://HOST:PORT expected")
    return BeanstalkdBroker(
        target=Target(url.hostname, url.port or _PORT, options.timeout),
        options=options,
        clock=address.dependencies.clock,
        new_token=lock_tokens(address.dependencies.rng),
    )


KIND: Final = Kind(
    options=BeanstalkdOptions,
    make=_make,
    cannot={
        "sessions": "a session id travels with its message, but no receiver can hold a session",
        "topics": "queues only",
        "deferral": "refused",
        "duplicate detection": "consumers must be idempotent",
    },
)
