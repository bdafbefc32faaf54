"""
The shards as operators see them, and the control call that shows them: the messages in each, and
whether it may be removed.
"""

import enum
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from gateway.domain.entity import EntityInfo
from gateway.domain.errors import BrokerError
from gateway.domain.operators.control import Operator
from gateway.extensions.sharding.table import ShardedQueue, ShardTable
from gateway.ports import Broker
from gateway.wire.pairgate.control_call import ControlCall, NoKeys

ANSWER_SECONDS: Final = 8.0  # less than a client's patience with the whole call
_AT_ONCE: Final = 16  # requests: a namespace with 1000 shards has other work, too
_OTHERS: Final = ("dead_lettered", "scheduled", "deferred", "transfer_dead_lettered")


class ShardState(enum.Enum):
    ACTIVE = "active"  # messages are sent to it
    JOINING = "joining"  # it gets messages once it exists
    DRAINING = "draining"  # it gets no more messages, and is received from


@attrs.frozen(kw_only=True)
class ShardReport:
    """A shard. `is_empty` None: its namespace doesn't answer, or doesn't count its messages."""

    queue: str  # that clients see
    number: int
    path: str  # of the shard itself
    namespace: str
    state: ShardState
    messages: int | None = None  # to receive; None: not known
    is_empty: bool | None = None
    not_counted: tuple[str, ...] = ()  # states of messages that the namespace doesn't report
    problem: str = ""


@attrs.frozen(kw_only=True)
class ShardsAnswer:
    """All shards of a gateway, by queue and number."""

    shards: tuple[ShardReport, ...]


@attrs.frozen(kw_only=True)
class ShardReports:
    """Asks the namespaces. `broker` has the shards, and `home` is the name of the primary."""

    broker: Broker
    table: ShardTable
    home: str

    async def execute(self, _: NoKeys, __: Operator) -> ShardsAnswer:
        """Ask for all shards; those without an answer in time have a problem, and no figures."""
        reports = {
            (queue.path.key, number): self._unknown(queue, number)
            for queue in self.table.queues
            for number in queue.numbers
        }
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def ask(key: tuple[str, int], report: ShardReport, queue: ShardedQueue) -> None:
            async with limit:
                try:
                    info = await self.broker.inspect(queue.path.shard(report.number))
                except BrokerError as error:
                    reports[key] = attrs.evolve(report, problem=str(error))
                else:
                    reports[key] = _counted(report, info)

        with trio.move_on_after(ANSWER_SECONDS):
            async with trio.open_nursery() as nursery:
                for queue in self.table.queues:
                    for number in queue.numbers:
                        key = (queue.path.key, number)
                        nursery.start_soon(ask, key, reports[key], queue)
        return ShardsAnswer(shards=tuple(reports.values()))

    def _unknown(self, queue: ShardedQueue, number: int) -> ShardReport:
        return ShardReport(
            queue=queue.path.name,
            number=number,
            path=queue.path.shard(number).name,
            namespace=queue.rule.namespace_of(number) or self.home,
            state=_state(queue, number),
            problem=f"no answer within {ANSWER_SECONDS:g} s",
        )


def is_empty(info: EntityInfo) -> bool | None:
    """
    True if the shard has no message in any state that its namespace reports, nor one that a
    receiver has locked; None: not known.
    """
    # Consumers of other processes may have locked messages that the namespace doesn't count.
    if info.active or info.locked_here or any(getattr(info, state) for state in _OTHERS):
        return False
    return None if info.active is None or info.other_consumers else True


def not_counted(info: EntityInfo) -> Iterator[str]:
    """The further states of messages that the namespace doesn't report."""
    return (state for state in _OTHERS if getattr(info, state) is None)


def _counted(report: ShardReport, info: EntityInfo) -> ShardReport:
    return attrs.evolve(
        report,
        messages=info.active,
        is_empty=is_empty(info),
        not_counted=tuple(not_counted(info)),
        problem="",
    )


def _state(queue: ShardedQueue, number: int) -> ShardState:
    if number in queue.rule.drain:
        return ShardState.DRAINING
    return ShardState.JOINING if number in queue.joining else ShardState.ACTIVE


SHARDS: Final = ControlCall(
    name="shards",
    method="GET",
    summary="the shards of each sharded queue, their messages, and which of them are empty",
    request=NoKeys,
    answer=ShardsAnswer,
    refusals=(501,),
    missing="shards no queue",
)
