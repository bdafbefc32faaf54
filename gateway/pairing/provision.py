"""Creates backlog queues on the secondary, and finds out which can be used."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import Sessions
from gateway.domain import backlog
from gateway.domain.backlog import BacklogQueue
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
)
from gateway.extensions.listing import parts
from gateway.offering import offered
from gateway.pairing.options import PairOptions
from gateway.pairing.records.place import place_of
from gateway.ports import Broker

ASK_LIMIT: Final = 5.0  # seconds to wait for an answer about one queue
SHORTEST_LOCK: Final = 5.0  # seconds: a syphon needs time to renew a lock


@attrs.frozen(kw_only=True)
class Backlog:
    """The backlog queues that a pair may use."""

    queues: tuple[EntityPath, ...]
    max_message_size: int | None  # bytes, of the queue with the lowest limit; None: not known
    problems: tuple[str, ...] = ()  # of wanted queues that can't be used
    asked: bool = True  # False: the secondary didn't answer for all; the others are assumed usable


async def provision(
    secondary: Broker,
    label: str,
    count: int,
    properties: QueueProperties = backlog.QUEUE_PROPERTIES,
    *,
    further: Iterable[BacklogQueue] = (),
) -> list[EntityPath]:
    """
    Create the backlog queues that are missing, the further ones, and the queue of the records of
    the pair's processes where one can be read; return those that were created.

    A secondary without sessions gets no queue that requires them.
    Needs the Manage right. Existing queues aren't changed. The pair works without records, so that
    a refusal of their queue alone isn't an error.

    Raises:
        BrokerError: a queue could not be created; those created before it stay.
    """
    made = []
    has_sessions = offered(secondary, Sessions) is not None
    for queue in (*_usual(label, count, properties), *further):
        if queue.properties.requires_session and not has_sessions:
            continue
        try:
            await secondary.create_queue(queue.path, queue.properties)
        except EntityExists:
            continue
        made.append(queue.path)
    if (records := place_of(secondary, label)) is not None:
        with suppress(EntityExists, NotAuthorized, NotSupported):
            await records.create()
            made.append(records.queue)
    return made


def backlog_queues(
    options: PairOptions,
    properties: QueueProperties = backlog.QUEUE_PROPERTIES,
    listed: Sequence[EntityInfo] = (),
) -> list[BacklogQueue]:
    """
    The backlog queues that a pair with these options needs, those of extensions among them.
    `listed` are queues of the primary.
    """
    usual = _usual(options.label, options.backlog_queues, properties)
    return [*usual, *further_queues(options, listed)]


def backlog_paths(options: PairOptions) -> list[EntityPath]:
    """The names of those that have messages of clients."""
    return [queue.path for queue in backlog_queues(options) if queue.is_backlog]


def further_queues(options: PairOptions, listed: Sequence[EntityInfo] = ()) -> list[BacklogQueue]:
    """
    The backlog queues of extensions, which a pair with these options needs. `listed` are queues of
    the primary.
    """
    return [queue for queues_of in parts("backlog_queues") for queue in queues_of(options, listed)]


def depends_on_primary(options: PairOptions) -> bool:
    """True if some of the `further_queues` are known only from the primary's queues."""
    return any(depends(options) for depends in parts("lists_primary"))


def _usual(label: str, count: int, properties: QueueProperties) -> list[BacklogQueue]:
    names = (backlog.queue_name(label, index) for index in range(count))
    return [BacklogQueue(path=path, properties=properties) for path in names]


async def usable_backlog(secondary: Broker, label: str, count: int) -> Backlog:
    """
    Find out which of the wanted backlog queues can be used.

    If the secondary can't be asked (it is down, or the right is missing) all are assumed usable: a
    start in an outage must work, and the rotation skips queues that fail.

    Raises:
        NotAuthorized: the credentials are refused even for sending.
    """
    wanted = [backlog.queue_name(label, index) for index in range(count)]
    queues: list[EntityPath] = []
    limits: list[int] = []
    problems: list[str] = []
    for number, queue in enumerate(wanted):
        try:
            with trio.fail_after(ASK_LIMIT):
                limit = await _limit_of(secondary, queue)
        except (EntityNotFound, EntityDisabled) as error:
            problems.append(f"{queue}: {error}")
        except NotAuthorized:
            raise
        except (BrokerError, trio.TooSlowError) as error:
            why = str(error) or f"no answer within {ASK_LIMIT:g} s"
            problems.append(f"the secondary can't be asked: {why}")
            told = _backlog([*queues, *wanted[number:]], limits, problems)
            return attrs.evolve(told, asked=False)
        else:
            queues.append(queue)
            limits += [limit] if limit is not None else []
    return _backlog(queues, limits, problems)


async def _limit_of(secondary: Broker, queue: EntityPath) -> int | None:
    """
    The maximum message size of a usable queue in bytes; None: not known.

    Raises:
        EntityNotFound, EntityDisabled: the queue can't be used.
    """
    try:
        info = await secondary.inspect(queue)
    except EntityNotFound as error:
        raise EntityNotFound("missing; run `pairgate provision` to create it") from error
    except NotAuthorized:
        # Reading a queue needs Manage; a probe needs Send only.
        await secondary.probe(queue)
        return None
    if info.properties.status is not EntityStatus.ACTIVE:
        raise EntityDisabled(f"the queue's status is {info.properties.status.value}")
    return info.max_message_size


def _backlog(
    queues: Sequence[EntityPath], limits: Sequence[int], problems: Sequence[str]
) -> Backlog:
    return Backlog(
        queues=tuple(queues),
        max_message_size=min(limits, default=None),
        problems=tuple(problems),
    )


def doubts(info: EntityInfo, queue: BacklogQueue) -> list[str]:
    """
    Properties of an existing queue of the backlog that may lose or delay its messages, or by which
    it is of no use, as sentences.
    """
    properties, needs_sessions = info.properties, queue.properties.requires_session
    sessions = {
        "it requires sessions": properties.requires_session and not needs_sessions,
        "it doesn't require sessions": needs_sessions and not properties.requires_session,
    }
    lossy = {
        "it drops what it takes for duplicates": properties.requires_duplicate_detection,
        "it forwards its messages": properties.forward_to is not None,
        "its messages expire": properties.default_time_to_live is not None,
        "it is deleted when idle": properties.auto_delete_on_idle is not None,
        f"its lock is shorter than {SHORTEST_LOCK:.0f} s": (
            properties.lock_duration.total_seconds() < SHORTEST_LOCK
        ),
        f"it moves messages to its dead letters after {properties.max_delivery_count} deliveries": (
            properties.max_delivery_count < backlog.QUEUE_PROPERTIES.max_delivery_count
        ),
        f"its status is {properties.status.value}": (properties.status is not EntityStatus.ACTIVE),
    }
    wrong = {**sessions, **lossy} if queue.is_backlog else sessions
    return [doubt for doubt, found in wrong.items() if found]
