"""A namespace that is watched while others use it."""

import random

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.capabilities import FailsFast, Identifies
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    NoAnswer,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
    Unreachable,
)
from gateway.domain.events.outages import NamespaceBack, NamespaceLost
from gateway.domain.health.abilities import AbilityState
from gateway.domain.identity import Identity
from gateway.domain.message import Complete, Message
from gateway.offering import capabilities_of, offered, required
from gateway.pairing.sending import send_in_time
from gateway.ports import Broker, Receiver
from gateway.store.local.memory import MemoryBroker
from gateway.telemetry.abilities import LOOK_SOON, SHORT_LOOK, AbilityWatch
from tests.harness.clocks import VirtualClock
from tests.harness.faults import FaultyBroker, Hang, Operation, Refuse
from tests.harness.remembering import RememberingBroker
from tests.harness.watched import watched
from tests.pairing.harness import Events

ORDERS = EntityPath("orders")
YES, NO, UNKNOWN = AbilityState.YES, AbilityState.NO, AbilityState.UNKNOWN


@attrs.frozen
class Stand:
    faulty: FaultyBroker
    broker: Broker
    watch: AbilityWatch

    def states(self) -> dict[str, AbilityState]:
        told = self.watch.status().items()
        return {name: one.state for name, one in told if one.state is not UNKNOWN}

    def breaks(self, operation: Operation, fault: object) -> None:
        self.faulty.fault = lambda asked, _: fault if asked is operation else None  # type: ignore


@pytest.fixture
async def stand(nursery: trio.Nursery) -> Stand:
    clock = VirtualClock()
    store = MemoryBroker(clock, random.Random(0))
    await store.create_queue(ORDERS, QueueProperties())
    faulty = FaultyBroker(inner=store)
    await nursery.start(faulty.run)
    watch = AbilityWatch(clock=clock)
    return Stand(faulty, watched(faulty, watch), watch)


async def test_a_success_is_seen(stand: Stand, autojump_clock: MockClock) -> None:
    await stand.broker.send(ORDERS, [Message()])
    sent = stand.states()
    async with stand.broker.open_receiver(ORDERS) as receiver:
        opened = stand.states()
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
    received = stand.states()
    await stand.broker.list_queues()

    assert sent == opened == {"send": YES, "reach": YES}
    assert received == {"send": YES, "receive": YES, "reach": YES}
    assert stand.states() == {"send": YES, "receive": YES, "manage": YES, "reach": YES}


async def test_a_failure_is_seen_and_raised(stand: Stand, autojump_clock: MockClock) -> None:
    stand.breaks(Operation.SEND, Refuse())

    with pytest.raises(Unavailable):
        await stand.broker.send(ORDERS, [Message()])

    assert stand.states()["send"] is NO


async def test_a_call_that_is_given_up_had_no_answer_unless_it_was_soon(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.breaks(Operation.SEND, Hang())

    with trio.move_on_after(0.5):
        await stand.broker.send(ORDERS, [Message()])
    soon = stand.states()
    with trio.move_on_after(2.0):
        await stand.broker.send(ORDERS, [Message()])

    assert soon == {}
    assert stand.states() == {"send": NO, "reach": NO}
    assert stand.watch.status()["reach"].error == "no answer from orders within 2 s"


async def test_a_receiver_that_waits_for_a_while_is_evidence(
    stand: Stand, autojump_clock: MockClock
) -> None:
    async with stand.broker.open_receiver(ORDERS) as receiver, trio.open_nursery() as nursery:
        nursery.start_soon(receiver.receive, 1)
        await trio.sleep(4.9)
        before = stand.states()
        await trio.sleep(0.2)
        waiting = stand.states()
        nursery.cancel_scope.cancel()

    assert before == {}
    assert waiting == {"receive": YES}


async def test_a_queue_that_cant_be_opened_is_no_outage(
    stand: Stand, autojump_clock: MockClock
) -> None:
    with pytest.raises(EntityNotFound):
        async with stand.broker.open_receiver(EntityPath("nowhere")):
            pytest.fail("it isn't there")

    assert stand.states() == {"reach": YES}


async def test_an_error_of_the_receivers_user_is_not_the_namespaces(
    stand: Stand, autojump_clock: MockClock
) -> None:
    with pytest.raises(Unavailable):
        async with stand.broker.open_receiver(ORDERS):
            raise Unavailable("elsewhere")

    assert stand.states() == {}


async def test_the_receiver_can_do_what_the_namespaces_can(
    stand: Stand, autojump_clock: MockClock
) -> None:
    kinds = capabilities_of(Receiver)
    async with (
        stand.faulty.inner.open_receiver(ORDERS) as inner,
        watched(stand.faulty.inner, stand.watch).open_receiver(ORDERS) as receiver,
    ):
        able = [offered(receiver, kind) is not None for kind in kinds]
        expected = [offered(inner, kind) is not None for kind in kinds]

    assert able == expected
    assert True in able
    assert False in able


async def test_a_namespace_that_fails_fast_does_so(
    stand: Stand, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    fast = RememberingBroker(inner=stand.faulty.inner, rng=random.Random(0))
    await nursery.start(fast.run)
    seen = watched(fast, stand.watch)

    await required(seen, FailsFast).try_send(ORDERS, [Message()])
    assert stand.states() == {"send": YES, "reach": YES}
    assert offered(stand.broker, FailsFast) is None


async def test_a_look_asks_for_what_nothing_has_shown_at_most_once_a_minute(
    stand: Stand, autojump_clock: MockClock
) -> None:
    asked: list[Operation] = []

    def note(operation: Operation, _: EntityPath | None) -> None:
        asked.append(operation)

    stand.faulty.fault = note
    await stand.watch.check(stand.broker, ORDERS, 3.0)
    first, told = list(asked), stand.states()
    await stand.watch.check(stand.broker, ORDERS, 3.0)
    again = len(asked)
    await trio.sleep(50.0)
    await stand.broker.send(ORDERS, [Message()])
    await trio.sleep(15.0)
    await stand.watch.check(stand.broker, ORDERS, 3.0)

    assert sorted(each.value for each in first) == ["manage", "probe"]
    assert told == {"send": YES, "manage": YES, "reach": YES}
    assert again == 2
    assert [each.value for each in asked[2:]] == ["send", "manage"]


async def test_a_look_at_what_hangs_takes_no_longer_than_it_may(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.faulty.fault = lambda *_: Hang()
    began = trio.current_time()

    await stand.watch.check(stand.broker, ORDERS, 3.0)

    assert trio.current_time() - began == pytest.approx(3.0)
    assert stand.states() == {"send": NO, "manage": NO, "reach": NO}


async def test_a_failing_ability_is_looked_at_every_few_seconds_and_not_for_long(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.faulty.fault = lambda *_: Hang()
    await stand.watch.check(stand.broker, ORDERS, 3.0)
    await trio.sleep(LOOK_SOON)
    began = trio.current_time()
    await stand.watch.check(stand.broker, ORDERS, 3.0)
    lasted = trio.current_time() - began
    stand.faulty.fault = lambda *_: None
    await trio.sleep(LOOK_SOON)
    await stand.watch.check(stand.broker, ORDERS, 3.0)

    assert lasted == pytest.approx(SHORT_LOOK)
    assert stand.states() == {"send": YES, "manage": YES, "reach": YES}


async def test_a_look_raises_nothing(stand: Stand, autojump_clock: MockClock) -> None:
    stand.faulty.fault = lambda *_: Refuse()

    with trio.fail_after(10.0):
        try:
            await stand.watch.check(stand.broker, ORDERS, 3.0)
        except BrokerError:
            pytest.fail("it is only a look")


async def test_a_namespace_that_is_lost_and_back_is_told_once_each(
    stand: Stand, autojump_clock: MockClock
) -> None:
    told = Events()
    watch = stand.watch
    watch.name, watch.address, watch.observer = "east", "east.example:5672", told
    await stand.broker.send(ORDERS, [Message()])
    stand.breaks(Operation.SEND, Refuse(lambda: Unreachable("refused")))
    for _ in range(3):
        await trio.sleep(5)
        with pytest.raises(Unreachable):
            await stand.broker.send(ORDERS, [Message()])
    stand.faulty.fault = lambda *_: None
    for _ in range(3):
        await trio.sleep(5)
        await stand.broker.send(ORDERS, [Message()])

    assert told.all == [
        NamespaceLost(
            namespace="east",
            reason="east.example:5672, orders: refused",
            remedy="check whether the namespace runs, and check its address, DNS and firewalls",
        ),
        NamespaceBack(namespace="east", seconds=15.0),
    ]
    assert watch.returns.version == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unavailable("HTTP status 503"), "east.example:5672, orders: HTTP status 503"),
        (OutcomeUnknown("reset"), "east.example:5672, orders: reset"),
        (Busy("50009"), "east.example:5672, orders: 50009"),
        (NotAuthorized("HTTP status 401"), "east.example:5672, orders: HTTP status 401"),
        (Unreachable("east.example:5672: refused"), "east.example:5672: refused"),
        (EntityNotFound("no queue orders"), "no queue orders"),
    ],
)
async def test_a_problem_of_a_namespace_names_its_address_and_the_entity(
    stand: Stand, autojump_clock: MockClock, error: BrokerError, text: str
) -> None:
    stand.watch.address = "east.example:5672"
    stand.breaks(Operation.SEND, Refuse(lambda: error))

    with pytest.raises(type(error)) as raised:
        await stand.broker.send(ORDERS, [Message()])

    assert str(raised.value) == text


async def test_a_receiver_that_fails_names_address_and_entity(
    stand: Stand, autojump_clock: MockClock
) -> None:
    stand.watch.address = "east.example:5672"
    stand.breaks(Operation.RECEIVE, Refuse(lambda: Unavailable("HTTP status 503")))

    async with stand.broker.open_receiver(ORDERS) as receiver:
        with pytest.raises(Unavailable, match=r"east\.example:5672, orders: HTTP status 503"):
            await receiver.receive(1)


async def test_a_time_out_names_address_and_entity(stand: Stand, autojump_clock: MockClock) -> None:
    stand.watch.address = "east.example:5672"
    stand.breaks(Operation.SEND, Hang())

    with pytest.raises(NoAnswer, match=r"^east\.example:5672: no answer from orders within 2 s$"):
        await send_in_time(watched(stand.faulty, stand.watch), ORDERS, [Message()], 2.0)

    told = stand.watch.status()["reach"].error
    assert told == "east.example:5672: no answer from orders within 2 s"


@pytest.mark.parametrize(
    ("error", "states"),
    [
        (Unreachable("refused"), {"reach": NO}),
        (NotAuthorized("HTTP status 401"), {"reach": YES}),
        (Busy("50009"), {"reach": YES}),
        (Unavailable("HTTP status 503"), {}),
    ],
)
async def test_a_question_who_the_namespace_is_shows_whether_it_can_be_reached(
    stand: Stand, autojump_clock: MockClock, error: BrokerError, states: dict[str, AbilityState]
) -> None:
    class Nameless(FaultyBroker):
        async def identity(self) -> Identity:
            raise error

    broker = watched(Nameless(inner=stand.faulty.inner), stand.watch)

    with pytest.raises(type(error)):
        await required(broker, Identifies).identity()

    assert stand.states() == states


async def test_a_remembered_failure_from_before_the_last_success_loses_no_namespace(
    stand: Stand, autojump_clock: MockClock
) -> None:
    told = Events()
    stand.watch.observer = told
    error = Unreachable("refused")
    error.since = trio.current_time()
    await trio.sleep(1)
    await stand.broker.send(ORDERS, [Message()])
    stand.breaks(Operation.SEND, Refuse(lambda: error))
    with pytest.raises(Unreachable):
        await stand.broker.send(ORDERS, [Message()])

    assert told.all == []
