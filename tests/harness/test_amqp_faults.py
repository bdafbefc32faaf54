"""A sender meets a server that speaks AMQP, and accepts no messages or doesn't answer."""

import pytest
import trio

from gateway.capabilities import send_accepted_by
from gateway.domain.errors import Busy, OutcomeUnknown, Unavailable
from gateway.domain.message import AcceptedBy
from tests.brokers.amqp.faults import ORDERS, Wire, failure_of, numbered, wired
from tests.harness.amqp_faults import BUSY, Detach, DetachInsteadOfAnswer, NoCredit
from tests.harness.chaos_proxy import Pass
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

[MESSAGE] = numbered(1)


def begin(wire: Wire, fault: Pass) -> None:
    wire.proxy.fault = fault
    wire.proxy.reset_all()


async def healed(wire: Wire, number: int) -> AcceptedBy:
    begin(wire, Pass())
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await send_accepted_by(wire.broker, ORDERS, numbered(number))
            except (Busy, Unavailable, OutcomeUnknown):
                await trio.sleep(0.05)


@pytest.mark.parametrize(("fault", "error"), [(Detach(), Unavailable), (Detach(BUSY), Busy)])
async def test_through_links_that_are_ended_at_once_nothing_is_sent(fault, error):
    async with wired() as wire:
        begin(wire, fault)
        with trio.fail_after(PATIENCE):
            while (
                type(told := await failure_of(wire.broker.send(ORDERS, numbered(1)))) is not error
            ):
                assert isinstance(told, Unavailable), told  # of the connection that was reset
        sent = await wire.sent()
        accepted_by = await healed(wire, 2)

        assert sent == []
        assert accepted_by is AcceptedBy.PRIMARY
        assert await wire.sent() == ["2"]


async def test_of_a_send_whose_link_ends_instead_of_an_answer_nobody_knows():
    async with wired() as wire:
        begin(wire, DetachInsteadOfAnswer())
        told = await failure_of(wire.broker.send(ORDERS, numbered(1)))
        sent = await wire.sent()
        await healed(wire, 2)

        assert type(told) is OutcomeUnknown
        assert sent == ["1"]
        assert await wire.sent() == ["1", "2"]


async def test_without_credit_nothing_is_sent():
    async with wired() as wire:
        begin(wire, NoCredit())
        with trio.move_on_after(1.0) as waiting:
            await wire.broker.send(ORDERS, numbered(1))
        sent = await wire.sent()
        await healed(wire, 2)

        assert waiting.cancelled_caught
        assert sent == []
        assert await wire.sent() == ["2"]


async def test_other_protocols_pass():
    async with wired() as wire:
        begin(wire, Detach())

        assert (await wire.broker.inspect(ORDERS)).active == 0
