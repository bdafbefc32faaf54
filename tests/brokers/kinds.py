"""The kinds of namespace that the contract is checked on. A new adapter adds itself to `KINDS`."""

import enum
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import attrs

from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.brokers.memory import MemoryBroker
from gateway.ports import Broker
from gateway.testing.clocks import VirtualClock
from tests.brokers.servicebus_rest import served as servicebus_rest

F = TypeVar("F", bound=Callable[..., Any])


class Capability(enum.Flag):
    """What not every namespace can do."""

    PEEK = enum.auto()
    SCHEDULE = enum.auto()
    TIME_TO_LIVE = enum.auto()
    SHORT_LOCKS = enum.auto()  # lock durations of a second
    DEAD_LETTER = enum.auto()  # with reason, and a sub-queue to receive from
    ALL_TYPES = enum.auto()  # every AMQP type survives
    MANAGEMENT = enum.auto()  # create, delete, list, properties
    COUNTS = enum.auto()  # `inspect` counts exactly
    QUOTA = enum.auto()
    RECEIVE_AND_DELETE = enum.auto()
    PROMPT_RETURN = enum.auto()  # what is given back is visible at once
    PROMPT_CANCEL = enum.auto()  # a cancelled receive takes nothing, not even until a lock ends


EVERYTHING = ~Capability(0)


@attrs.frozen(kw_only=True)
class BrokerKind:
    """
    `open` gives an open broker, which is empty; the folder is for its files.

    `virtual_time`: no socket, thread or process, so that the tests of time needn't wait.
    """

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Broker]]
    can: Capability = EVERYTHING
    virtual_time: bool = False


def needs(capability: Capability) -> Callable[[F], F]:
    """The test is there only for the kinds that can do this."""

    def mark(test: F) -> F:
        test.needs = capability  # type: ignore[attr-defined]
        return test

    return mark


def real_date() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def memory(_folder: Path) -> AsyncIterator[Broker]:
    async with MemoryBroker(VirtualClock(), random.Random(0)) as broker:
        yield broker


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Broker]:
    async with EmbeddedBroker(folder / "store" / "a.db", real_date, random.Random(0)) as broker:
        yield broker


KINDS = [
    BrokerKind(name="memory", open=memory, virtual_time=True),
    BrokerKind(name="embedded", open=embedded),
    BrokerKind(
        name="servicebus+http",
        open=servicebus_rest.pairgate,
        can=EVERYTHING & ~Capability.PROMPT_CANCEL,
    ),
    BrokerKind(
        name="servicebus+http, no Pairgate",
        open=servicebus_rest.stranger,
        can=EVERYTHING
        & ~(
            Capability.PROMPT_CANCEL
            | Capability.PEEK
            | Capability.DEAD_LETTER
            | Capability.ALL_TYPES
        ),
    ),
]
