"""Creates backlog queues on the secondary, and finds out which can be used."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.capabilities import Peeks
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
    NotSupported,
)
from gateway.offering import offered
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
    ordered: bool = False,
    leases: bool = False,
) -> list[EntityPath]:
    """
    Create the backlog queues that are missing, with `ordered` also those of ordered entities, with
    `leases` also the queue of their leases, and the queue of the syphons' heartbeats where one can
    be read; return those that were created.

    Needs the Manage right. Existing queues aren't changed. The pair works without heartbeats, so
    that a refusal of their queue alone isn't an error.

    Raises:
        BrokerError: a queue could not be created; those created before it stay.
    """
    made = []
    wanted = [(backlog.queue_name(label, index), properties) for index in range(count)]
    if ordered:
        wanted += [(queue, backlog.ORDERED_PROPERTIES) for queue in backlog.ordered_queues(label)]
    if leases:
        wanted.append((backlog.lease_queue(label), backlog.LEASE_PROPERTIES))
    for queue, its in wanted:
        try:
            await secondary.create_queue(queue, its)
        except EntityExists:
            continue
        made.append(queue)
    if offered(secondary, Peeks) is not None:
        queue = backlog.heartbeat_queue(label)
        with suppress(EntityExists, NotAuthorized, NotSupported):
            await secondary.create_queue(queue, QueueProperties())
            made.append(queue)
    return made


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


def doubts(info: EntityInfo) -> list[str]:
    """
    Properties of an existing backlog queue that may lose or delay its messages, as sentences; or
    those by which the lease queue is none.
    """
    properties, keeps_order = info.properties, backlog.is_ordered(info.path)
    if backlog.is_lease_queue(info.path):
        return [] if properties.requires_session else ["it doesn't require sessions"]
    wrong = {
        "it requires sessions": properties.requires_session and not keeps_order,
        "it doesn't require sessions": keeps_order and not properties.requires_session,
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
    return [doubt for doubt, found in wrong.items() if found]
