"""Backlog queues on the secondary: make them, and find out which can be used."""

from collections.abc import Sequence
from typing import Final

import attrs

from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus
from gateway.domain.errors import BrokerError, EntityExists, EntityNotFound, NotAuthorized
from gateway.ports import Broker

SHORTEST_LOCK: Final = 30.0  # seconds: a syphon must move what it took within one


@attrs.frozen(kw_only=True)
class Backlog:
    """The backlog queues that a pair may use."""

    queues: tuple[EntityPath, ...]
    max_message_size: int | None  # bytes, the smallest of them; None: not known
    problems: tuple[str, ...] = ()  # of wanted queues that can't be used


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
    for queue in wanted:
        try:
            info = await secondary.inspect(queue)
        except EntityNotFound:
            problems.append(f"{queue}: missing; `pairgate provision` makes it")
        except NotAuthorized:
            # Without Manage a queue can't be read; a probe needs no more than Send.
            await secondary.probe(queue)
            queues.append(queue)
        except BrokerError as error:
            taken_on_trust = wanted[len(queues) + len(problems) :]
            reason = f"the secondary can't be asked: {error}"
            return _backlog([*queues, *taken_on_trust], limits, [*problems, reason])
        else:
            if info.properties.status is not EntityStatus.ACTIVE:
                problems.append(f"{queue}: its status is {info.properties.status.value}")
                continue
            queues.append(queue)
            if info.max_message_size is not None:
                limits.append(info.max_message_size)
    return _backlog(queues, limits, problems)


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
