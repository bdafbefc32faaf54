"""Sends of ordered entities: each key in its order, through an outage and back."""

import errno
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from itertools import chain

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import Sessions
from gateway.changes import Changes
from gateway.domain.errors import (
    InvalidRequest,
    Outcome,
    OutcomeUnknown,
    QuotaExceeded,
    SessionNotAvailable,
    Unavailable,
)
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy, Complete, Message
from gateway.domain.operators.control import Override
from gateway.extensions.order import sends
from gateway.extensions.order.keys import key_of
from gateway.extensions.order.queues import ordered_queues
from gateway.extensions.order.watch import OrderedQueue
from gateway.offering import required
from gateway.pairing import state_file
from gateway.pairing.gathering import GatheringBroker
from gateway.pairing.options import OnUnknown
from gateway.pairing.pair import Pair
from gateway.pairing.sending import SHORT_WAIT, Batch, Sending
from gateway.pairing.state_file import parse
from tests.extensions.order.order_lease import watch_of
from tests.harness.faults import LoseAnswer, Operation, Refuse
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    QUEUE,
    Harness,
    Slow,
    Timed,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

OUTAGE = {"failover_interval": 0.0, "ping_interval": 1.0, "successes_to_return": 1}
PRIMARY, BACKLOG = AcceptedBy.PRIMARY, AcceptedBy.BACKLOG
HOME = ordered_queues("east")[key_of(ORDERS, message()).number]


@pytest.fixture
def ordered() -> bool:
    return True


async def ordered_pair(harness: Harness, **options) -> Pair:
    """A pair that knows its backlog."""
    pair = await harness.pair(ordered=("orders",), **{**OUTAGE, **options})
    while watch_of(pair).status().unknown:
        await watch_of(pair).changes.wait_next()
    return pair


async def send(pair: Pair, name: str, **fields) -> AcceptedBy:
    return await pair.broker.send_diverting(ORDERS, [message(name, **fields)])


async def ids_in_session(harness: Harness, queue=HOME) -> list:
    return await harness.secondary.ids(queue)


async def move_all(harness: Harness, pair: Pair) -> None:
    """Let a syphon move the backlog, until the pair knows that nothing is left there."""
    syphon = await harness.syphon()
    while watch_of(pair).status().away:
        await watch_of(pair).changes.wait_next()
    syphon.cancel()


async def test_calls_of_a_key_go_one_after_the_other_and_those_that_wait_together(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Slow(1.0), Operation.SEND)
    began, ended = trio.current_time(), []

    async def send_and_note(name, **fields):
        await send(pair, name, **fields)
        ended.append((round(trio.current_time() - began), name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(send_and_note, "other", session_id="s"))
        for name in ("a", "b", "c"):
            nursery.start_soon(send_and_note, name)
            await trio.sleep(0.01)

    assert sorted(ended) == [(1, "a"), (1, "other"), (2, "b"), (2, "c")]
    assert [each for each in await harness.primary.ids() if each != "other"] == ["a", "b", "c"]


async def test_in_an_outage_all_messages_of_a_key_are_in_one_session_in_order(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)

    accepted = [await send(pair, name) for name in "abc"]

    assert accepted == [BACKLOG] * 3
    assert await ids_in_session(harness) == ["a", "b", "c"]
    assert len({each.session_id for each in await harness.secondary.messages(HOME)}) == 1
    assert await harness.secondary.ids(QUEUE) == []


async def test_after_the_outage_sends_stay_behind_those_on_the_backlog(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)

    assert await send(pair, "b") is BACKLOG
    assert await ids_in_session(harness) == ["a", "b"]

    await move_all(harness, pair)

    assert await send(pair, "c") is PRIMARY
    assert await harness.primary.ids() == ["a", "b", "c"]


async def test_a_message_that_a_syphon_has_locked_keeps_its_key_away(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(HOME, None) as receiver:
        [delivery] = await receiver.receive(1)
        await watch_of(pair).changes.wait_next()

        assert await send(pair, "b") is BACKLOG

        await receiver.settle(delivery, Complete())
        [delivery] = await receiver.receive(1)
        await receiver.settle(delivery, Complete())
    while watch_of(pair).status().away:
        await watch_of(pair).changes.wait_next()

    assert await send(pair, "c") is PRIMARY


async def test_a_list_that_began_before_a_diverted_send_ended_brings_no_key_home(harness):
    key = key_of(ORDERS, message())
    queue = OrderedQueue(HOME, any_key=None)
    queue.record_diverted(key, 1)
    began = queue.version
    queue.record_diverted(key, 0)
    queue.record_list(Counter(), began)

    assert not queue.is_home

    queue.record_list(Counter(), queue.version)

    assert queue.is_home


async def test_a_send_waits_for_the_few_that_are_left_and_then_goes_to_the_primary(harness):
    """The key returns to the primary, however steadily it is sent to."""
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    names = [f"{number:03}" for number in range(300)]
    for name in names[:10]:
        await send(pair, name)
    harness.primary.heal()
    await harness.syphon()
    accepted = []
    for name in names[10:]:
        accepted.append(await send(pair, name))
        await trio.sleep(0.05)

    assert accepted[-1] is PRIMARY
    assert await harness.primary.ids() == names


async def test_a_wait_in_vain_isnt_repeated_soon(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    key, watch = key_of(ORDERS, message()), watch_of(pair)
    while watch.queue_of(key).away[key.digest].left is None:
        await watch_of(pair).changes.wait_next()
    began = trio.current_time()

    await send(pair, "b")
    waited = trio.current_time() - began
    await send(pair, "c")

    assert waited == pytest.approx(sends.WAIT, abs=0.1)
    assert trio.current_time() - began - waited < 0.1


async def after_a_restart(harness: Harness, messages: int, **options) -> Pair:
    """A gateway that doesn't know of an outage in which a number of messages was diverted."""
    before = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    for number in range(messages):
        await send(before, str(number))
    harness.primary.heal()
    pair = harness.parts(ordered=("orders",), **OUTAGE).assemble()
    for name, value in options.items():
        setattr(watch_of(pair), name, value)
    return pair


async def test_a_wait_in_vain_for_an_unknown_backlog_isnt_repeated_soon(harness):
    pair = await after_a_restart(harness, 1)
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    await harness.nursery.start(pair.run)
    took = []
    for name in "ef":
        with Timed() as timed:
            assert await send(pair, name) is BACKLOG
        took.append(timed.seconds)

    assert took == [pytest.approx(sends.WAIT, abs=0.1), pytest.approx(0.0, abs=0.5)]


@pytest.mark.parametrize(("messages", "options"), [(sends.FEW + 1, {}), (4, {"most_listed": 3})])
async def test_no_send_waits_for_a_key_once_a_list_shows_that_many_messages_are_left(
    harness, messages, options
):
    """As a new gateway, or a new orderer, doesn't know that the primary is down."""
    pair = await after_a_restart(harness, messages, **options)
    harness.secondary.fail(Slow(0.5), Operation.MANAGE)
    await harness.nursery.start(pair.run)

    with Timed() as took:
        assert await send(pair, "last") is BACKLOG

    assert 0.5 <= took.seconds < 2.0


async def test_a_backlog_queue_that_fails_has_no_substitute(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.secondary.fail(Refuse(), Operation.SEND)

    with pytest.raises(Unavailable) as caught:
        await send(pair, "b")

    assert caught.value.outcome is Outcome.NOT_SENT
    assert {
        each.entity for each in harness.secondary.asked if each.operation is Operation.SEND
    } == {HOME}


async def test_a_key_that_is_away_isnt_sent_to_the_primary_because_the_secondary_fails(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    harness.secondary.fail(Refuse())

    with pytest.raises(Unavailable):
        await send(pair, "b")

    assert await harness.primary.ids() == []


async def test_a_key_is_at_home_again_if_the_backlog_has_certainly_refused_its_message(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, times=2)
    harness.secondary.fail(Refuse())
    with pytest.raises(Unavailable):
        await send(pair, "a")
    await pair.states.wait_moved(ORDERS, State.SECONDARY)

    assert await send(pair, "b") is PRIMARY


async def test_a_key_stays_away_after_an_unknown_outcome_on_the_backlog(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, times=2)
    harness.secondary.fail(LoseAnswer(), Operation.SEND)
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    with pytest.raises(OutcomeUnknown):
        await send(pair, "a")
    harness.secondary.heal()

    assert await send(pair, "b") is BACKLOG
    assert (await ids_in_session(harness))[-1] == "b"


async def test_the_spool_has_no_part_in_an_order(harness):
    pair = await ordered_pair(harness, spool=True)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    harness.secondary.fail(Refuse(), Operation.SEND)

    with pytest.raises(Unavailable):
        await send(pair, "a")

    assert await harness.spool.ids(QUEUE) == []


async def test_a_batch_with_several_keys_is_sent_by_key(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    batch = [message("a1", session_id="a"), message("b1", session_id="b")]
    batch += [message("a2", session_id="a"), message("b2", session_id="b")]

    assert await pair.broker.send_diverting(ORDERS, batch) is BACKLOG

    async def ids_of(session):
        queue = watch_of(pair).queue_of(key_of(ORDERS, message(session_id=session))).path
        digest = key_of(ORDERS, message(session_id=session)).digest
        found = await harness.secondary.messages(queue)
        return [each.message_id for each in found if each.session_id == digest]

    assert await ids_of("a") == ["a1", "a2"]
    assert await ids_of("b") == ["b1", "b2"]


async def test_a_batch_of_which_a_part_was_accepted_has_an_unknown_outcome(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(refuse(InvalidRequest, "no"), Operation.SEND, times=1)

    with pytest.raises(OutcomeUnknown):
        await pair.broker.send_diverting(
            ORDERS, [message("a", session_id="a"), message("b", session_id="b")]
        )


async def test_a_send_without_messages_is_accepted_by_the_primary(harness):
    pair = await ordered_pair(harness)

    assert await pair.broker.send_diverting(ORDERS, []) is PRIMARY


async def test_batches_behind_one_that_isnt_accepted_arent_sent(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(refuse(InvalidRequest, "no"), Operation.SEND)

    verdicts = await pair.broker.send_many(ORDERS, [[message("a")], [message("b")]])

    assert isinstance(verdicts[0], InvalidRequest)
    assert isinstance(verdicts[1], Unavailable)
    assert harness.primary.sends() == 2  # both together, and then the first alone


async def test_batches_of_one_key_share_a_call(harness):
    pair = await ordered_pair(harness)

    verdicts = await pair.broker.send_many(ORDERS, [[message(name)] for name in "abc"])

    assert verdicts == [None] * 3
    assert await harness.primary.ids() == ["a", "b", "c"]
    assert harness.primary.sends() == 1


async def test_sends_to_an_ordered_entity_arent_gathered(harness):
    pair = await ordered_pair(harness)
    gathering = GatheringBroker(
        pair=pair.broker, namespaces=[harness.primary.broker, harness.secondary.broker]
    )
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(gathering.send, ORDERS, [message(name, session_id=name)])
            nursery.start_soon(gathering.send, BILLS, [message(name)])

    assert harness.primary.sends(ORDERS) == 3


async def test_entities_that_arent_ordered_go_their_usual_way(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)

    assert await pair.broker.send_diverting(BILLS, [message("a")]) is BACKLOG
    assert await harness.secondary.ids(QUEUE) == ["a"]


async def test_a_send_that_waits_for_another_ends_at_its_deadline(harness):
    pair = await ordered_pair(harness)
    first, second = Batch([message("a")]), Batch([message("b")])
    taken, deadline = pair.broker.moments.now(), trio.current_time() + 5.0

    async def deliver(key, batch, since):
        await trio.sleep(10.0)
        batch.accepted_by = PRIMARY

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.broker.delivery.in_turns, ORDERS, [first], taken, deadline, deliver)
        await wait_all_tasks_blocked()
        await pair.broker.delivery.in_turns(ORDERS, [second], taken, deadline, deliver)

        assert trio.current_time() == pytest.approx(deadline)

    assert first.accepted_by is PRIMARY
    assert second.error.outcome is Outcome.NOT_SENT
    assert "an earlier send" in str(second.error)


@attrs.define(eq=False)
class Calls:
    """Calls of one key to `OrderedSends.deliver`, which begin one after the other."""

    pair: Pair
    nursery: trio.Nursery
    asked: list[list[str]] = attrs.field(factory=list)
    verdicts: dict[str, AcceptedBy | Outcome] = attrs.field(factory=dict)
    refused: dict[str, Exception] = attrs.field(factory=dict)  # errors by message
    seconds: float = 1.0
    changes: Changes = attrs.field(factory=Changes)

    async def begin(self, name: str, *, seconds=10.0, size=1) -> trio.CancelScope:
        """Begin a call with that message; return its scope once it has its place."""
        scope = trio.CancelScope()
        self.nursery.start_soon(self._call, scope, name, trio.current_time() + seconds, size)
        await wait_all_tasks_blocked()
        return scope

    async def _call(self, scope, name, deadline, size) -> None:
        batch = Batch([Message(message_id=name, body=bytes(size))])
        taken = self.pair.broker.moments.now()
        with scope:
            await self.pair.broker.delivery.in_turns(
                ORDERS, [batch], taken, deadline, self._deliver
            )
            assert batch.accepted_by is not None or batch.error is not None
            self.verdicts[name] = batch.accepted_by or batch.error.outcome
            self.changes.notify()

    async def _deliver(self, key, batch, since) -> None:
        ids = [each.message_id for each in batch.messages]
        self.asked.append(ids)
        self.changes.notify()
        await trio.sleep(self.seconds)
        errors = [self.refused[each] for each in ids if each in self.refused]
        if errors:
            batch.fail(errors[0])
        else:
            batch.accepted_by = PRIMARY


@pytest.fixture
async def calls(harness: Harness) -> AsyncIterator[Calls]:
    pair = await ordered_pair(harness)
    async with trio.open_nursery() as nursery:
        yield Calls(pair, nursery)


async def end_of(calls: Calls, names: str) -> None:
    while not calls.verdicts.keys() >= set(names):
        await calls.changes.wait_next()


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), QuotaExceeded("full")], ids=["bad", "full"]
)
async def test_a_message_at_fault_doesnt_fail_the_calls_that_went_along(calls, error):
    calls.refused["b"] = error
    for name in "abcd":
        await calls.begin(name)
    await end_of(calls, "abcd")

    assert calls.asked == [["a"], ["b", "c", "d"], ["b"], ["c", "d"]]
    assert calls.verdicts == {
        "a": PRIMARY,
        "b": Outcome.NOT_SENT,
        "c": PRIMARY,
        "d": PRIMARY,
    }


async def test_a_call_is_sent_alone_if_there_is_no_room_for_those_that_went_along(calls):
    calls.refused["c"] = QuotaExceeded("full")
    for name in "abc":
        await calls.begin(name)
    await end_of(calls, "abc")

    assert calls.asked == [["a"], ["b", "c"], ["b"], ["c"]]
    assert calls.verdicts == {"a": PRIMARY, "b": PRIMARY, "c": Outcome.NOT_SENT}


async def test_calls_that_went_along_in_vain_use_the_rest_of_their_time(calls):
    calls.refused["b"] = Unavailable("down")
    for name in "abc":
        await calls.begin(name)
    await end_of(calls, "abc")

    assert calls.asked == [["a"], ["b", "c"], ["c"]]
    assert calls.verdicts == {"a": PRIMARY, "b": Outcome.NOT_SENT, "c": PRIMARY}


async def test_an_unknown_outcome_is_that_of_all_calls_that_went_along(calls):
    calls.refused["b"] = OutcomeUnknown("no answer")
    for name in "abc":
        await calls.begin(name)
    await end_of(calls, "abc")

    assert calls.asked == [["a"], ["b", "c"]]
    assert calls.verdicts == {"a": PRIMARY, "b": Outcome.UNKNOWN, "c": Outcome.UNKNOWN}


async def test_calls_that_went_along_are_unknown_if_the_call_is_cancelled_that_took_them(calls):
    await calls.begin("a")
    scope = await calls.begin("b")
    await calls.begin("c")
    while len(calls.asked) < 2:
        await calls.changes.wait_next()
    scope.cancel()
    await calls.begin("d")
    await end_of(calls, "acd")

    assert calls.asked == [["a"], ["b", "c"], ["d"]]
    assert calls.verdicts == {"a": PRIMARY, "c": Outcome.UNKNOWN, "d": PRIMARY}


async def test_a_cancelled_call_that_waits_isnt_taken_along(calls):
    await calls.begin("a")
    await calls.begin("b")
    scope = await calls.begin("c")
    await calls.begin("d")
    scope.cancel()
    await end_of(calls, "abd")

    assert calls.asked == [["a"], ["b", "d"]]
    assert calls.verdicts == dict.fromkeys("abd", PRIMARY)


@pytest.mark.parametrize(
    "of_c",
    [{"seconds": 3.0}, {"size": sends.MOST_BYTES}],
    ids=["has less time", "is large"],
)
async def test_a_call_goes_alone_if_it(calls, of_c):
    await calls.begin("a")
    await calls.begin("b", seconds=5.0)
    await calls.begin("c", **of_c)
    await calls.begin("d")
    await end_of(calls, "abcd")

    assert calls.asked[:2] == [["a"], ["b"]]
    assert [*chain(*calls.asked)] == [*"abcd"]


async def test_a_call_that_came_later_keeps_its_time_to_live_and_goes_alone(calls):
    await calls.begin("a")
    await calls.begin("b")
    await trio.sleep(0.5)
    await calls.begin("c")
    await end_of(calls, "abc")

    assert calls.asked == [["a"], ["b"], ["c"]]


async def test_a_message_that_goes_along_with_an_earlier_one_never_expires_too_early(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Slow(1.0), Operation.SEND)
    hour, sent = timedelta(hours=1), {}

    async with trio.open_nursery() as nursery:
        for name in "abc":
            sent[name] = harness.clock()
            nursery.start_soon(partial(send, pair, name, time_to_live=hour))
            await trio.sleep(0.05)

    expiries = {e.message.message_id: e.expires for e in await harness.primary.deliveries()}
    assert harness.primary.sends() == 2
    assert expiries["a"] == sent["a"] + hour
    assert expiries["c"] == sent["c"] + hour
    assert sent["b"] + hour <= expiries["b"] <= sent["b"] + hour + timedelta(seconds=SHORT_WAIT)


async def test_a_call_whose_time_ends_while_it_goes_along_has_an_unknown_outcome(calls):
    await calls.begin("a")
    await calls.begin("b", seconds=2.5)
    await calls.begin("c", seconds=2.5)
    calls.seconds = 5.0
    await end_of(calls, "abc")

    assert calls.asked == [["a"], ["b", "c"]]
    assert calls.verdicts == {"a": PRIMARY, "b": PRIMARY, "c": Outcome.UNKNOWN}


async def test_nothing_is_sent_if_the_turn_comes_after_the_deadline(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    late = Sending(
        entity=ORDERS,
        batches=[Batch([message("b")])],
        taken=pair.broker.moments.now(),
        deadline=trio.current_time() - 0.001,
        attempt_timeout=1.0,
        on_unknown=OnUnknown.DIVERT,
        may_divert=True,
    )

    await pair.broker.delivery.try_ways(late, key_of(ORDERS, message("b")))

    assert late.left == 0.0
    assert [batch.error for batch in late.pending] == [None]
    assert await ids_in_session(harness) == ["a"]


async def test_without_knowledge_of_the_backlog_nothing_goes_to_the_primary(harness):
    harness.secondary.fail(Refuse())
    pair = await harness.pair(ordered=("orders",), send_timeout=2.0, **OUTAGE)

    with pytest.raises(Unavailable):
        await send(pair, "a")
    assert harness.primary.sends() == 0
    harness.secondary.heal()
    while watch_of(pair).status().unknown:
        await watch_of(pair).changes.wait_next()

    assert await send(pair, "b") is PRIMARY


async def test_a_new_gateway_finds_the_keys_that_are_on_the_backlog(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    harness.primary.heal()

    another = await ordered_pair(harness)

    assert watch_of(another).status().away == 1
    assert await send(another, "b") is BACKLOG


async def test_keys_stay_away_while_a_queue_has_too_many_messages_to_list(harness):
    pair = await ordered_pair(harness)
    watch_of(pair).most_listed = 3
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    for name in "abcd":
        await send(pair, name)
    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    await trio.sleep(30.0)

    assert await send(pair, "e") is BACKLOG


async def test_more_keys_than_are_remembered_make_all_keys_of_their_queue_away(harness):
    pair = await ordered_pair(harness)
    for queue in watch_of(pair).queues:
        queue.most_away = 1
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    for number in range(20):
        await send(pair, str(number), session_id=str(number))

    assert watch_of(pair).status().unknown

    harness.primary.heal()
    await pair.states.wait_moved(ORDERS, State.SECONDARY)
    await harness.syphon()
    await trio.sleep(10.0)

    assert not watch_of(pair).status().unknown
    assert not watch_of(pair).status().away
    assert await send(pair, "last", session_id="0") is PRIMARY


@pytest.mark.trio(run=trio.run)  # the state file is written in a thread
async def test_a_clean_end_is_remembered(harness, tmp_path):
    parts = harness.parts(ordered=("orders",), **OUTAGE)
    parts = attrs.evolve(parts, state=tmp_path / "state.json")
    async with trio.open_nursery() as nursery:
        first = parts.assemble()
        await nursery.start(first.run)
        while watch_of(first).status().unknown:
            await watch_of(first).changes.wait_next()
        nursery.cancel_scope.cancel()
    harness.secondary.fail(Refuse())

    second = parts.assemble()
    async with trio.open_nursery() as nursery:
        await nursery.start(second.run)
        assert await send(second, "a") is PRIMARY
        nursery.cancel_scope.cancel()
    # The second life ended as well; a third one that is killed leaves nothing to rely on.
    third = parts.assemble()
    async with trio.open_nursery() as nursery:
        await nursery.start(third.run)
        saved = parse((tmp_path / "state.json").read_bytes(), ["empty_ordered"])
        assert saved.kept == {"empty_ordered": ()}
        nursery.cancel_scope.cancel()


@pytest.mark.trio(run=trio.run)  # the state file is written in a thread
async def test_a_clean_end_counts_once_even_if_the_next_start_cant_write_the_file(
    harness, tmp_path, monkeypatch
):
    path = tmp_path / "state.json"
    parts = attrs.evolve(harness.parts(ordered=("orders",), **OUTAGE), state=path)
    pin = Override(target="other", reason="kept", operator="ann", since=harness.clock())
    async with trio.open_nursery() as nursery:
        first = parts.assemble()
        await nursery.start(first.run)
        first.states.pins.restore([pin])
        while watch_of(first).status().unknown:
            await watch_of(first).changes.wait_next()
        nursery.cancel_scope.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(state_file, "_write", full_disk)
        async with trio.open_nursery() as nursery:
            second = parts.assemble()
            await nursery.start(second.run)
            assert not watch_of(second).status().unknown
            nursery.cancel_scope.cancel()  # as if it were killed: it can't write its file either

    third = parts.assemble()
    third.state.restore()
    assert watch_of(third).names() == ()
    assert third.states.pins.all() == (pin,)
    assert await third.state.save()
    assert list(tmp_path.iterdir()) == [path]


def full_disk(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_the_session_of_a_key_has_one_syphon_at_a_time(harness):
    pair = await ordered_pair(harness)
    harness.primary.fail(Refuse(), Operation.SEND, Operation.PROBE)
    await send(pair, "a")
    sessions = required(harness.secondary.store, Sessions)
    async with sessions.open_session(HOME, None) as receiver:
        with pytest.raises(SessionNotAvailable):
            async with sessions.open_session(HOME, receiver.session_id):
                pass
