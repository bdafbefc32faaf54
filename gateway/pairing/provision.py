"""Backlog queues on the secondary: make them, and find out which can be used."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    NotAuthorized,
)
from gateway.ports import Broker

ASK_LIMIT: Final = 5.0  # seconds to wait for an answer about one queue
SHORTEST_LOCK: Final = 30.0  # seconds: a syphon must move what it took within one


@attrs.frozen(kw_only=True)
class Backlog:
    """The backlog queues that a pair may use."""

    queues: tuple[EntityPath, ...]
    max_message_size: int | None  # bytes, the smallest of them; None: not known
    problems: tuple[str, ...] = ()  # of wanted queues that can't be used
    asked: bool = True  # False: the secondary hasn't told of all of them, some are taken on trust


async def provision(secondary: Broker, label: str, count: int) -> list[EntityPath]:
    """
    Make the wanted backlog queues that are missing, as the legacy client does; return those made.

    Needs the Manage right. A queue that is there is left as it is.

    Raises:
        BrokerError: of the first queue that couldn't be made; the earlier ones stay.
    """
    made = []
    for index in range(count):
        queue = backlog.queue_name(label, index)
        try:
            await secondary.create_queue(queue, backlog.QUEUE_PROPERTIES)
        except EntityExists:
            continue
        made.append(queue)
    return made


async def usable_backlog(secondary: Broker, label: str, count: int) -> Backlog:
    """
    Find out which of the wanted backlog queues can be used.

    Where the secondary can't be asked (it is down, or the right is missing) all are taken on
    trust: starting in an outage must work, and the rotation finds out about each.

    Raises:
        NotAuthorized: the credentials are refused for sending too.
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
    The largest message that a usable queue takes, in bytes; None: not known.

    Raises:
        EntityNotFound, EntityDisabled: it can't be used.
    """
    try:
        info = await secondary.inspect(queue)
    except EntityNotFound as error:
        raise EntityNotFound("missing; `pairgate provision` makes it") from error
    except NotAuthorized:
        # Without Manage a queue can't be read; a probe needs no more than Send.
        await secondary.probe(queue)
        return None
    if info.properties.status is not EntityStatus.ACTIVE:
        raise EntityDisabled(f"its status is {info.properties.status.value}")
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
    """What may lose or stop messages of an existing backlog queue that somebody else made."""
    properties = info.properties
    wrong = {
        "it requires sessions": properties.requires_session,
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
