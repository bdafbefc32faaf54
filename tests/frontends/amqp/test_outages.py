"""Links on which clients receive, in an outage of the namespace behind them."""

import itertools
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import Unavailable, Unreachable
from gateway.domain.message import Message, ReceiveMode
from gateway.frontends.options import DETACH
from gateway.frontends.outages import Outages
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.conftest import Faulty
from tests.frontends.amqp.sdk import HOST
from tests.frontends.amqp.sessions import SQ, asks, holds
from tests.frontends.rest_client import ORDERS
from tests.harness.faults import Call, Operation, Refuse

ADDRESS = "rabbit-1.internal:5672"


async def put(house, *names, entity=ORDERS, **fields):
    await house.broker.send(entity, [Message(message_id=each, **fields) for each in names])


def name(transfer):
    return decode_delivery(transfer.payload).message.message_id


def heard(sdk):
    """The deliveries and errors that a client has got."""
    kinds = (amqp.TransferReceived, amqp.LinkDetached, amqp.ConnectionClosed)
    return [each for each in sdk.told if isinstance(each, kinds)]


@pytest.fixture
def probes(house):
    """When the namespace was asked whether it is back."""
    times = []

    def watch(call: Call) -> None:
        if call.operation is Operation.PROBE:
            times.append(trio.current_time())

    house.faulty.watch = watch
    return times


async def test_a_link_stays_in_an_outage_and_delivers_within_a_second_of_the_return(
    house, sdk, autojump_clock
):
    link = await sdk.receiver(credit=10)
    await put(house, "before")
    before = await sdk.delivery(link)
    await sdk.settle(before, amqp.ACCEPTED)

    house.faulty.crash()
    await trio.sleep(300)
    told = heard(sdk)
    await put(house, "after")
    house.faulty.restart()
    back = trio.current_time()
    after = await sdk.delivery(link)

    assert told == []
    assert name(after) == "after"
    assert trio.current_time() - back < 1
    assert await sdk.settle(after, amqp.ACCEPTED) == amqp.ACCEPTED
    assert heard(sdk) == []


async def test_a_link_that_is_attached_in_an_outage_waits_for_its_end(house, sdk, autojump_clock):
    house.faulty.crash()

    link = await sdk.receiver(credit=10)
    await trio.sleep(300)
    told = heard(sdk)
    await put(house, *map(str, range(20)))
    house.faulty.restart()
    back = trio.current_time()
    first = [await sdk.delivery(link) for _ in range(10)]

    assert told == []
    assert [name(each) for each in first] == list(map(str, range(10)))
    assert trio.current_time() - back < 1
    assert [await sdk.settle(each, amqp.ACCEPTED) for each in first] == [amqp.ACCEPTED] * 10


async def test_a_silent_namespace_holds_up_an_attach_only_for_its_time(
    house, sdk, monkeypatch, autojump_clock
):
    answers, began = trio.Event(), trio.current_time()
    open_receiver = Faulty.open_receiver

    @asynccontextmanager
    async def open_late(broker, entity, mode=ReceiveMode.PEEK_LOCK):
        await answers.wait()
        async with open_receiver(broker, entity, mode) as receiver:
            yield receiver

    monkeypatch.setattr(Faulty, "open_receiver", open_late)
    await put(house, "late")
    link = await sdk.receiver(credit=1)
    took = trio.current_time() - began
    await trio.sleep(100)
    told = heard(sdk)
    answers.set()

    assert took == pytest.approx(10)
    assert name(await sdk.delivery(link)) == "late"
    assert told == []


async def test_all_waiting_links_share_the_questions_whether_it_is_back(
    house, sdk, probes, autojump_clock
):
    links = [await sdk.receiver(credit=1) for _ in range(20)]
    house.faulty.crash()
    began = trio.current_time()
    await trio.sleep(100)
    asked = len(probes)
    await put(house, *map(str, range(20)))
    house.faulty.restart()
    for link in links:
        await sdk.delivery(link)

    assert asked <= 2 * 100 + 1
    assert trio.current_time() - began < 101


async def test_a_client_that_drains_its_credit_hastens_no_question(
    house, sdk, probes, autojump_clock
):
    link = await sdk.receiver(credit=1)
    house.faulty.crash()
    await trio.sleep(1)
    probes.clear()
    for _ in range(100):
        sdk.engine.drain(link)
        await sdk.until(amqp.LinkDrained, lambda event: event.link == link)
        sdk.engine.grant(link, 1)
        await trio.sleep(0.1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    await put(house, "after")
    house.faulty.restart()

    assert min(gaps) >= 0.5 - 1e-6
    assert name(await sdk.delivery(link)) == "after"


async def test_a_queue_alone_out_of_reach_is_tried_twice_a_second(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=1)
    tries = 0

    def refuse() -> Unavailable:
        nonlocal tries
        tries += 1
        return Unavailable("the node of this queue is down")

    await trio.sleep(1)
    house.faulty.crash()
    house.faulty.restart()
    house.breaks(Operation.RECEIVE, Refuse(refuse))
    await trio.sleep(60)
    house.faulty.fault = lambda operation, entity: None
    await put(house, "after")

    assert name(await sdk.delivery(link)) == "after"
    assert 100 <= tries <= 125


async def test_an_error_that_is_no_outage_ends_the_link(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=1)
    house.faulty.crash()
    await trio.sleep(10)
    await house.broker.delete_queue(ORDERS)
    house.faulty.restart()

    detached = await sdk.until(amqp.LinkDetached)

    assert (detached.link, detached.error.condition) == (link, "amqp:not-found")


@pytest.fixture
async def sessions(house):
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    await put(house, "a", entity=SQ, session_id="s")
    return house


@pytest.mark.parametrize("outage", [10, 300], ids=["shorter than its lock", "longer"])
async def test_a_session_ends_when_the_namespace_is_back_or_with_its_lock(
    sessions, sdk, outage, autojump_clock
):
    link, _ = await holds(sdk, "s")
    sdk.engine.grant(link, 10)
    await sdk.delivery(link)
    began = trio.current_time()

    async def return_later() -> None:
        await trio.sleep(outage)
        sessions.faulty.restart()

    sessions.faulty.crash()
    sessions.nursery.start_soon(return_later)
    detached = await sdk.until(amqp.LinkDetached)

    took = trio.current_time() - began
    assert detached.error.condition == "amqp:link:detach-forced"
    assert took == pytest.approx(min(outage, 60), abs=1)


async def test_a_session_that_is_asked_for_in_an_outage_is_opened_after_it(
    sessions, sdk, autojump_clock
):
    sessions.faulty.crash()
    link = sdk.attach(**asks(None))
    await trio.sleep(20)
    sessions.faulty.restart()
    back = trio.current_time()

    answer = await sdk.until(amqp.LinkAttached, lambda event: event.link == link)
    sdk.engine.grant(link, 1)

    assert answer.source is not None
    assert name(await sdk.delivery(link)) == "a"
    assert trio.current_time() - back < 1


@pytest.fixture
async def detaching(house):
    options = attrs.evolve(house.frontend.options, receivers_in_outage=DETACH)
    house.frontend = attrs.evolve(house.frontend, options=options)
    return await house.client()


async def test_a_link_that_shall_end_in_an_outage_says_why_without_an_address(
    house, detaching, autojump_clock
):
    link = await detaching.receiver(credit=1)
    await trio.sleep(1)
    house.faulty.crash()
    house.faulty.restart()
    house.breaks(
        Operation.RECEIVE, Refuse(lambda: Unreachable(f"{ADDRESS}, orders: Connection refused"))
    )

    detached = await detaching.until(amqp.LinkDetached)
    sender = await detaching.sender()

    assert detached.link == link
    assert await detaching.send(sender, Message()) == amqp.ACCEPTED
    assert detached.error.condition in {"amqp:link:detach-forced", "com.microsoft:timeout"}
    assert ADDRESS not in detached.error.description


async def test_a_client_that_attaches_again_at_once_gets_an_error_a_second(
    house, detaching, autojump_clock
):
    house.faulty.crash()
    began, errors = trio.current_time(), []

    while trio.current_time() < began + 20:
        errors.append(await detaching.refusal(we_send=False, address=HOST + "orders"))

    assert {each.condition for each in errors} == {"amqp:link:detach-forced"}
    assert len(errors) == 20


async def test_settlements_in_an_outage_are_told_the_truth(house, sdk, autojump_clock):
    link = await sdk.receiver(credit=2)
    await put(house, "known", "unknown")
    known, unknown = [await sdk.delivery(link) for _ in range(2)]
    house.breaks(Operation.SETTLE, Refuse(lambda: Unreachable(f"{ADDRESS}: Connection refused")))

    outcome = await sdk.settle(known, amqp.ACCEPTED)
    house.faulty.fault = lambda operation, entity: None
    again = await sdk.settle(unknown, amqp.ACCEPTED)

    assert outcome.error.condition == "com.microsoft:container-close"
    assert "namespace" in outcome.error.description
    assert ADDRESS not in outcome.error.description
    assert again == amqp.ACCEPTED


async def test_a_question_without_an_answer_is_asked_again(house, autojump_clock):
    outages = Outages(house.faulty)
    began = trio.current_time()
    house.breaks(Operation.PROBE, Refuse(lambda: Unreachable("refused")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outages.wait_answer, ORDERS)
        await trio.sleep(30)
        house.faulty.fault = lambda operation, entity: None

    assert trio.current_time() - began == pytest.approx(30, abs=0.6)
    assert not await outages.is_away(ORDERS)
