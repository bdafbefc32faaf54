"""The messages of ordered entities move in the order of their session, despite any failure."""

from datetime import timedelta

import attrs
import pytest
import trio

from gateway.capabilities import Sessions
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest, NotAuthorized
from gateway.domain.message import DeadLetter, Message
from gateway.domain.operators.control import Operator, Override
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.ordered_drain import MOST_SESSIONS, PAUSE
from gateway.extensions.order.queues import ordered_queue, ordered_queues
from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.extensions.purge.purge import Purge
from gateway.extensions.redrive.order import Redriven, Selection
from gateway.extensions.redrive.redrive import Redrive
from gateway.offering import required
from gateway.pairing.syphon.pauses import Pauses
from tests.harness.clocks import VirtualClock
from tests.harness.faults import LoseAnswer, Operation, Refuse
from tests.pairing.harness import (
    BILLS,
    LABEL,
    ORDERS,
    Harness,
    Slow,
    envelope,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time


@pytest.fixture
def ordered() -> bool:
    return True


async def divert(harness: Harness, *messages: Message, entity=ORDERS, **changes) -> None:
    """Put messages of an ordered entity on the backlog, as a gateway does."""
    for number, each in enumerate(messages, 1):
        key = key_of(entity, each)
        wrapped = envelope(**changes).wrap(
            each,
            entity,
            attempt=harness.new_id(),
            now=harness.clock(),
            place=f"{key.digest}.0.{number}",
        )
        queue = ordered_queue(LABEL, key.number)
        await harness.secondary.store.send(queue, [wrapped])


async def left(harness: Harness) -> int:
    queues = ordered_queues(LABEL)
    return sum([len(await harness.secondary.messages(queue)) for queue in queues])


async def wait_empty(harness: Harness) -> None:
    for _ in range(6000):
        if not await left(harness):
            return
        await trio.sleep(0.1)
    raise AssertionError("the backlog isn't empty")


@pytest.mark.parametrize("encrypts", [False, True], ids=["signed", "encrypted"])
async def test_messages_arrive_in_their_order_and_as_they_were(harness, encrypts):
    sent = [message("a"), message("b", session_id="s"), message("c", partition_key="p")]
    sent += [message(str(number)) for number in range(50)]
    await divert(harness, *sent, encrypts=encrypts)

    await harness.syphon()
    await wait_empty(harness)

    arrived = await harness.primary.messages()
    assert [e.message_id for e in arrived if e.session_id is None and e.partition_key is None] == [
        "a",
        *map(str, range(50)),
    ]
    fields = {each.message_id: (each.session_id, each.partition_key) for each in arrived}
    assert fields["b"] == ("s", None)
    assert fields["c"] == (None, "p")
    assert all(not each.properties for each in arrived)


async def test_a_session_stops_at_the_first_message_that_fails_and_others_go_on(harness):
    await divert(harness, *(message(name) for name in "abc"))
    await divert(harness, *(message(name) for name in "xyz"), entity=BILLS)
    harness.primary.fail(None, Operation.SEND, entity=ORDERS, times=1)
    harness.primary.fail(Refuse(), Operation.SEND, entity=ORDERS)
    await harness.syphon()
    await trio.sleep(20.0)

    assert await harness.primary.ids(ORDERS) == ["a"]
    assert await harness.primary.ids(BILLS) == ["x", "y", "z"]

    harness.primary.heal()
    await wait_empty(harness)

    assert await harness.primary.ids(ORDERS) == ["a", "b", "c"]


async def test_an_unknown_outcome_repeats_a_message_and_reorders_none(harness):
    await divert(harness, *(message(name) for name in "abc"))
    harness.primary.fail(None, Operation.SEND, times=1)
    harness.primary.fail(LoseAnswer(), Operation.SEND, times=1)

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["a", "b", "b", "c"]


async def test_a_message_that_can_never_be_moved_is_dead_lettered_and_the_next_ones_move(harness):
    await divert(harness, *(message(name) for name in "abc"))
    harness.primary.fail(None, Operation.SEND, times=1)
    harness.primary.fail(refuse(InvalidRequest, "no"), Operation.SEND, times=1)

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["a", "c"]


async def test_the_next_messages_wait_until_a_dead_letter_is_confirmed(harness):
    await divert(harness, *(message(name) for name in "ab"))
    harness.primary.fail(refuse(InvalidRequest, "no"), Operation.SEND, times=1)
    harness.secondary.fail(Refuse(), Operation.SETTLE, times=1)

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["a", "b"]


async def test_a_message_whose_completion_failed_isnt_sent_again(harness):
    await divert(harness, *(message(name) for name in "abc"))
    harness.secondary.fail(Refuse(), Operation.SETTLE, times=2)

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["a", "b", "c"]


async def test_two_syphons_move_a_session_in_its_order(harness):
    names = [str(number) for number in range(40)]
    await divert(harness, *map(message, names))
    harness.primary.fail(Slow(0.1), Operation.SEND)

    first = await harness.syphon()
    await harness.syphon()
    await trio.sleep(1.0)
    first.cancel()
    await wait_empty(harness)

    assert list(dict.fromkeys(await harness.primary.ids())) == names


async def test_a_killed_syphons_messages_come_first_at_the_next_one(harness):
    """A dead client's session stays locked until its lock ends."""
    await divert(harness, *(message(name) for name in "abc"))
    harness.primary.fail(Slow(5.0), Operation.SEND)
    first = await harness.syphon()
    await trio.sleep(1.0)
    harness.secondary.broker.crash()
    first.cancel()
    harness.primary.heal()
    harness.secondary.broker.down = False

    await harness.syphon()
    await trio.sleep(1.0)

    await divert(harness, message("d"))
    await wait_empty(harness)

    assert list(dict.fromkeys(await harness.primary.ids())) == ["a", "b", "c", "d"]


async def test_a_message_without_a_place_in_the_order_is_dead_lettered(harness):
    key = key_of(ORDERS, message())
    wrapped = envelope().wrap(message("a"), ORDERS, attempt="1", now=harness.clock())
    queue = ordered_queue(LABEL, key.number)

    await harness.secondary.store.send(queue, [attrs.evolve(wrapped, session_id="another")])
    await divert(harness, message("b"))

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["b"]
    assert await harness.secondary.ids(queue.dead_letter) == ["a"]


async def test_messages_of_another_pair_stay_where_they_are(harness):
    await divert(harness, message("a"), pair="west")

    await harness.syphon()
    await trio.sleep(40.0)

    assert await harness.primary.ids() == []
    assert await left(harness) == 1


async def test_the_queues_are_found_without_the_right_to_list(harness):
    harness.secondary.fail(refuse(NotAuthorized, "no"), Operation.MANAGE)
    await divert(harness, *(message(name) for name in "ab"))

    await harness.syphon()
    await wait_empty(harness)

    assert await harness.primary.ids() == ["a", "b"]


def same_queue(entity, *, first: int = 0, number: int) -> list[Message]:
    """Return messages, each of a key of its own, that all belong to one backlog queue."""
    names = (f"m{index}" for index in range(first, first + 100 * number))
    all_of_them = (message(name, session_id=name) for name in names)
    return [each for each in all_of_them if key_of(entity, each).number == 0][:number]


async def test_an_entity_with_many_keys_that_cant_be_moved_doesnt_hold_up_the_others(harness):
    stuck = same_queue(ORDERS, number=3 * MOST_SESSIONS)
    moved = same_queue(BILLS, number=5)
    await divert(harness, *stuck)
    await divert(harness, *moved, entity=BILLS)
    harness.primary.fail(Refuse(), Operation.SEND, entity=ORDERS)
    await harness.syphon()
    await trio.sleep(60.0)

    assert len(await harness.primary.ids(BILLS)) == 5
    assert await harness.primary.ids(ORDERS) == []

    harness.primary.heal()
    await wait_empty(harness)

    assert len(await harness.primary.ids(ORDERS)) == len(stuck)


async def test_the_others_arent_held_up_either_if_the_queue_has_many_foreign_messages(harness):
    await divert(harness, *same_queue(ORDERS, number=2 * MOST_SESSIONS), pair="west")
    await divert(harness, *same_queue(BILLS, number=5), entity=BILLS)
    await harness.syphon()
    await trio.sleep(60.0)

    assert len(await harness.primary.ids(BILLS)) == 5
    assert await left(harness) == 2 * MOST_SESSIONS


async def test_a_session_whose_messages_cant_be_received_is_left_for_a_while(harness):
    await harness.syphon(queue_retry=Backoff(first=0.1, cap=0.1))
    await trio.sleep(5.0)  # a session is waited for
    harness.secondary.fail(Refuse(), Operation.RECEIVE)
    await divert(harness, message("a"))
    failed = trio.current_time()
    await trio.sleep(0.1)
    harness.secondary.heal()
    await wait_empty(harness)

    assert harness.primary.times(Operation.SEND)[0] >= failed + PAUSE


async def test_a_clock_that_is_ahead_by_years_renews_no_session_more_often(harness):
    harness.clocks["syphon"] = VirtualClock(timedelta(days=3650))
    await divert(harness, message("a"))
    harness.primary.fail(Slow(300.0), Operation.SEND)
    await harness.syphon(attempt_timeout=600.0)
    await trio.sleep(200.0)

    assert 1 <= len(harness.secondary.times(Operation.RENEW)) <= 100


async def test_a_paused_queue_releases_its_sessions_so_that_all_of_it_can_be_purged(
    harness: Harness,
) -> None:
    await divert(harness, *(message(str(number)) for number in range(200)))
    await divert(harness, *(message(str(number)) for number in range(60)), entity=BILLS)
    harness.primary.fail(Slow(1.0), Operation.SEND)
    pauses = Pauses()
    await harness.syphon(pauses=pauses)
    await trio.sleep(2.5)
    override = Override(target="*", reason="", operator="ann", since=harness.clock())
    pauses.overrides.add([override])
    pauses.apply()
    await trio.sleep(10.0)
    waiting = await left(harness)

    answers = [await purged(harness, each) for each in ordered_queues(LABEL)]

    assert 0 < waiting < 260
    assert [each.left for each in answers] == [0] * len(answers)
    assert sum(each.purged for each in answers) == waiting
    assert await left(harness) == 0


async def test_a_message_that_a_syphon_moves_meanwhile_is_left_by_a_purge(harness: Harness) -> None:
    await divert(harness, *(message(name) for name in "abc"))
    harness.primary.fail(Refuse(), Operation.SEND)
    await harness.syphon()
    await trio.sleep(5.0)

    answers = [await purged(harness, each) for each in ordered_queues(LABEL)]

    assert (sum(each.purged for each in answers), sum(each.left for each in answers)) == (0, 3)
    assert await left(harness) == 3


@pytest.mark.parametrize("reason", ["EntityNotFound", "TTLExpiredException"])
async def test_a_dead_letter_that_is_redriven_arrives_behind_the_others(
    harness: Harness, reason: str
) -> None:
    sent = [message(name, session_id="s") for name in "abc"]
    await divert(harness, *sent)
    queue = ordered_queue(LABEL, key_of(ORDERS, sent[0]).number)
    store = harness.secondary.store
    async with required(store, Sessions).open_session(queue, None) as receiver:
        first = (await receiver.receive(1))[0]
        await receiver.settle(first, DeadLetter(reason=reason))
    redrive = Redrive(
        source=harness.secondary.broker,
        label=LABEL,
        queues=1,
        envelope=envelope(),
        deducts=True,
        clock=harness.clock,
        new_id=harness.new_id,
        observer=harness.events,
    )

    done = await redrive.run(Selection(reasons=(reason,)), add=lambda _: None)
    await harness.syphon()
    await wait_empty(harness)

    assert done == Redriven(moved=1)
    arrived = await harness.primary.messages()
    assert [(each.message_id, each.session_id) for each in arrived] == [
        ("b", "s"),
        ("c", "s"),
        ("a", "s"),
    ]


async def purged(harness: Harness, queue: EntityPath) -> PurgeAnswer:
    purge = Purge(
        source=harness.secondary.broker, label=LABEL, clock=harness.clock, observer=harness.events
    )
    ann = Operator(name="ann", peer="unknown")
    seen = await purge.execute(PurgeOrder(queue=queue.name), ann)
    order = PurgeOrder(queue=queue.name, confirm=queue.name, messages=seen.messages)
    return await purge.execute(order, ann)
