"""Parts of the tests of transactions that other tests need, too."""

from typing import Any

import attrs

from gateway.domain.message import Message, ValueBody
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.events import ACCEPTED, TransactionalState
from gateway.wire.amqp.transactions import (
    Control,
    Declare,
    Discharge,
    build_control,
)
from tests.frontends.amqp.sdk import Sdk

COORDINATOR = amqp.Terminus(coordinator=True, capabilities=("amqp:local-transactions",))
ROLLBACK = "amqp:transaction:rollback"
LIMIT = "amqp:resource-limit-exceeded"


@attrs.define(eq=False)
class Controller:
    """A client with a link to the coordinator."""

    sdk: Sdk
    link: amqp.LinkId

    def ask(self, control: Control) -> amqp.DeliveryId:
        asked = self.sdk.engine.send(self.link, b"control", build_control(control))
        assert asked is not None
        return asked

    async def declare(self) -> bytes:
        state = await self.sdk.outcome(self.ask(Declare()))
        assert isinstance(state, amqp.Declared), state
        return state.txn_id

    async def discharge(self, txn_id: bytes, *, fail: bool = False) -> amqp.DeliveryState | None:
        return await self.sdk.outcome(self.ask(Discharge(txn_id=txn_id, fail=fail)))

    def post(self, link: amqp.LinkId, txn_id: bytes, body: str) -> amqp.DeliveryId:
        return self.sdk.transfer(
            link, Message(body=ValueBody(body)), state=TransactionalState(txn_id=txn_id)
        )

    async def send(self, link: amqp.LinkId, txn_id: bytes, body: str) -> Any:
        return await self.sdk.outcome(self.post(link, txn_id, body))

    async def settle(
        self, transfer: amqp.TransferReceived, txn_id: bytes, outcome: amqp.Outcome = ACCEPTED
    ) -> amqp.DeliveryState | None:
        """The provisional outcome."""
        state = TransactionalState(txn_id=txn_id, outcome=outcome)
        self.sdk.engine.update(transfer.delivery, state)
        told = await self.sdk.until(
            amqp.DispositionReceived, lambda event: event.delivery == transfer.delivery
        )
        assert not told.settled
        state_told: amqp.DeliveryState | None = told.state
        return state_told


async def controller_of(sdk: Sdk) -> Controller:
    link = await sdk.attached(we_send=True, address="", target=COORDINATOR)
    await sdk.until(amqp.LinkFlow, lambda event: event.link == link)
    return Controller(sdk, link)


def condition(state: amqp.DeliveryState | None) -> str:
    assert isinstance(state, amqp.Rejected), state
    assert state.error is not None
    return state.error.condition


@attrs.define(eq=False)
class Around:
    """A namespace that fails where the inner one doesn't."""

    _inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
