"""Parts of the tests of gathering that other tests need, too."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import SendsMany, SendsTogether
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.message import AcceptedBy, Message
from gateway.forwarding_broker import ForwardingBroker
from gateway.offering import offered
from gateway.pairing.gathering import GatheringBroker
from gateway.ports import Broker
from tests.harness.faults import Operation
from tests.pairing.harness import ORDERS, Harness, Slow, message

SEND = Operation.SEND


@attrs.define(eq=False)
class Counted(ForwardingBroker):
    """Notes how many sends came in each call."""

    inner: Broker
    calls: list[int] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        self.calls.append(1)
        await self.inner.send(entity, messages)

    async def send_many(self, entity, batches, *, fails_fast=False):
        self.calls.append(len(batches))
        return await offered(self.inner, SendsMany).send_many(entity, batches)


@attrs.define(eq=False)
class OneByOne(ForwardingBroker):
    """Has no pipeline, and may take several messages in one request."""

    inner: Broker
    together: bool = False
    calls: list[int] = attrs.field(factory=list)

    adds: ClassVar[frozenset[type]] = frozenset((SendsTogether,))

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        self.calls.append(len(messages))
        await self.inner.send(entity, messages)

    def sends_together(self) -> bool:
        return self.together


class Alone(OneByOne):
    """Takes one message in a request."""

    adds: ClassVar[frozenset[type]] = frozenset()
    forwards: ClassVar[frozenset[type]] = ForwardingBroker.forwards - {SendsTogether}


class Clients:
    """Clients of a pair that gathers; the first send is under way until `answer`."""

    def __init__(
        self, harness: Harness, broker: GatheringBroker, primary: Counted | OneByOne
    ) -> None:
        self.harness, self.broker, self.primary = harness, broker, primary
        self.verdicts: dict[str, AcceptedBy | BrokerError] = {}

    async def send(self, name: str, *, entity: EntityPath = ORDERS, body: bytes = b"body") -> None:
        sent = attrs.evolve(message(name), body=body)
        try:
            accepted = await self.broker.send_diverting(entity, [sent])
        except BrokerError as error:
            self.verdicts[name] = error
        else:
            assert isinstance(accepted, AcceptedBy)
            self.verdicts[name] = accepted

    async def begin(self) -> None:
        """A send that has no answer for a second."""
        self.harness.primary.fail(Slow(1.0), SEND, times=1)
        self.harness.nursery.start_soon(self.send, "first")
        await wait_all_tasks_blocked()

    async def together(self, *names: str, **how) -> None:
        """Send all at once; return when each send has its verdict."""
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(partial(self.send, name, **how))


async def clients(
    harness: Harness, primary: Counted | OneByOne | None = None, **options
) -> Clients:
    primary = primary or Counted(harness.primary.broker)
    pair = attrs.evolve(harness.parts(**options), primary=primary).assemble()
    await harness.nursery.start(pair.run)
    namespaces = [primary, harness.secondary.broker]
    return Clients(harness, GatheringBroker(pair=pair.broker, namespaces=namespaces), primary)
