"""A hedged send: its second copy goes to the backlog when the primary's answer is late."""

import pytest
import trio
import trio.testing

from gateway.domain.errors import EntityNotFound, OutcomeUnknown, QuotaExceeded, Unavailable
from gateway.domain.events.gateway import Diverted, SentTwice
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.domain.status.sections import merge_sections
from gateway.extensions.hedging.hedging import HedgeBudget
from gateway.extensions.hedging.status import SECTION, HedgingStatus
from gateway.pairing.options import EntityRule
from tests.harness.faults import Hang, Operation
from tests.harness.options import made
from tests.pairing.harness import (
    BILLS,
    ORDERS,
    QUEUE,
    Slow,
    message,
    outcome_of,
    send,
    virtual_time,
)

pytestmark = virtual_time

SEND, PROBE = Operation.SEND, Operation.PROBE
HEDGED = {"hedge_after": 0.3}


class Late:
    """The request arrives after some seconds, and is then answered at once; or refused."""

    def __init__(self, seconds, error=None):
        self.seconds, self.error = seconds, error

    async def strike(self, work, nursery):
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error("late")
        return await work()


async def timed(pair, *messages, entity=ORDERS):
    began = trio.current_time()
    accepted_by = await send(pair, *messages, entity=entity)()
    return accepted_by, trio.current_time() - began


async def test_a_send_that_is_not_answered_soon_is_answered_by_the_backlog(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Slow(1.0), SEND)

    accepted_by, seconds = await timed(pair, message("m1"))

    assert (accepted_by, seconds) == (AcceptedBy.BACKLOG, pytest.approx(0.3))
    assert await harness.primary.ids() == ["m1"]
    assert await harness.secondary.ids(QUEUE) == ["m1"]


async def test_without_the_option_it_waits(harness):
    pair = await harness.pair()
    harness.primary.fail(Slow(1.0), SEND)

    assert await timed(pair, message("m1")) == (AcceptedBy.PRIMARY, pytest.approx(1.0))


async def test_a_frozen_primary_stalls_no_send_longer_than_six_tenths_of_a_second(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Hang())
    waited = []

    async def one(number):
        await trio.sleep(number / 20)
        waited.append((await timed(pair, message(f"m{number}")))[1])

    async with trio.open_nursery() as nursery:
        for number in range(400):
            nursery.start_soon(one, number)

    assert len(waited) == 400
    assert max(waited) <= 0.6


async def test_the_primary_answers_first_and_the_copy_is_called_off(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Slow(0.4), SEND)
    harness.secondary.fail(Late(1.0), SEND)

    assert await timed(pair, message("m1")) == (AcceptedBy.PRIMARY, pytest.approx(0.4))
    await trio.sleep(5.0)
    assert await harness.secondary.ids(QUEUE) == []


async def test_a_rule_of_an_entity_hedges_that_entity_alone(harness):
    pair = await harness.pair(entities=(made(EntityRule, match="orders", hedge_after=0.3),))
    harness.primary.fail(Slow(1.0), SEND)

    assert await timed(pair, message("m1")) == (AcceptedBy.BACKLOG, pytest.approx(0.3))
    assert await timed(pair, message("m2"), entity=BILLS) == (
        AcceptedBy.PRIMARY,
        pytest.approx(1.0),
    )


async def test_while_its_entity_is_well_only_a_share_of_the_sends_is_hedged(harness):
    pair = await harness.pair(**HEDGED, hedge_budget=0.05, slow_call_duration=None)
    harness.primary.fail(Slow(1.0), SEND)

    accepted_by = [(await timed(pair, message(f"m{number}")))[0] for number in range(100)]

    assert accepted_by.count(AcceptedBy.BACKLOG) == 5
    assert pair.states.state_of(ORDERS) is State.PRIMARY
    assert pair.sections[SECTION]() == HedgingStatus(hedged=5, not_hedged=95)


async def test_a_send_to_a_suspect_entity_counts_as_hedged_without_a_grant(harness):
    pair = await harness.pair(**HEDGED, hedge_budget=0.0)
    harness.primary.fail(Slow(1.0), SEND)

    await timed(pair, message("m1"))

    assert pair.sections[SECTION]() == HedgingStatus(hedged=1, not_hedged=0)


async def test_a_pair_that_hedges_nothing_has_no_figures_of_it(harness):
    plain = await harness.pair()
    ruled = await harness.pair(entities=(made(EntityRule, match="orders", hedge_after=0.3),))

    assert SECTION not in plain.sections
    assert SECTION in ruled.sections


async def test_figures_of_workers_are_added_up():
    parent, *workers = (HedgingStatus(hedged=n, not_hedged=2 * n) for n in range(3))

    whole = merge_sections({SECTION: parent}, [{SECTION: each} for each in workers], [])

    assert whole == {SECTION: HedgingStatus(hedged=3, not_hedged=6)}
    [line] = SECTION.lines(whole[SECTION])
    assert line == "hedging  3 sends hedged, 6 not, by hedge_budget"


async def test_one_late_send_among_others_leaves_its_entity_on_the_primary(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Slow(1.0), SEND, times=1)
    late = []

    async def first():
        late.append(await timed(pair, message("late")))

    harness.nursery.start_soon(first)
    await trio.sleep(0.1)
    assert (await timed(pair, message("soon")))[0] is AcceptedBy.PRIMARY
    await trio.sleep(2.0)

    assert late == [(AcceptedBy.PRIMARY, pytest.approx(1.0))]  # no share was saved for it
    assert pair.states.troubled() == []


async def test_a_primary_that_fails_while_the_copy_is_under_way_waits_for_the_copy(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Late(0.5, Unavailable), SEND)
    harness.secondary.fail(Late(1.0), SEND, times=1)

    assert await timed(pair, message("m1")) == (AcceptedBy.BACKLOG, pytest.approx(1.3))
    assert await harness.secondary.ids(QUEUE) == ["m1"]
    assert harness.secondary.sends(QUEUE) == 1


async def test_a_copy_that_both_accept_is_told_as_sent_twice_for_certain(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Late(0.5), SEND)
    harness.secondary.fail(Late(0.2), SEND)

    assert (await timed(pair, message("m1"), message("m2")))[0] is AcceptedBy.PRIMARY

    await trio.testing.wait_all_tasks_blocked()
    assert await harness.primary.ids() == await harness.secondary.ids(QUEUE) == ["m1", "m2"]
    assert [each.in_doubt for each in harness.events.of(Diverted)] == [True]
    assert harness.events.of(SentTwice) == [SentTwice(entity=ORDERS, messages=2, certain=True)]


async def test_a_copy_that_is_called_off_is_told_as_possibly_sent_twice(harness):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(Slow(0.4), SEND)
    harness.secondary.fail(Slow(1.0), SEND)

    await timed(pair, message("m1"))

    await trio.testing.wait_all_tasks_blocked()
    assert harness.events.of(SentTwice) == [SentTwice(entity=ORDERS, messages=1, certain=False)]


@pytest.mark.parametrize(("late", "in_doubt"), [(Slow(1.0), True), (Late(0.5, Unavailable), False)])
async def test_a_hedged_copy_is_in_doubt_unless_the_primary_refused_the_send(
    harness, late, in_doubt
):
    pair = await harness.pair(**HEDGED)
    harness.primary.fail(late, SEND)
    harness.secondary.fail(Late(0.4), SEND)

    assert (await timed(pair, message("m1")))[0] is AcceptedBy.BACKLOG

    assert [each.in_doubt for each in harness.events.of(Diverted)] == [in_doubt]
    assert harness.events.of(SentTwice) == []


@pytest.mark.parametrize("error", [EntityNotFound, QuotaExceeded])
async def test_a_refusal_after_the_copy_has_no_answer_is_unknown(harness, error):
    pair = await harness.pair(**HEDGED, attempt_timeout=2.0)
    harness.primary.fail(Late(0.5, error), SEND)
    harness.secondary.fail(Hang(), SEND)

    assert isinstance(await outcome_of(send(pair, message("m1"))), OutcomeUnknown)


async def test_an_entity_that_never_leaves_the_primary_is_not_hedged(harness):
    pair = await harness.pair(
        entities=(made(EntityRule, match="orders", divert=False, hedge_after=0.3),)
    )
    harness.primary.fail(Slow(1.0), SEND)

    assert (await timed(pair, message("m1")))[0] is AcceptedBy.PRIMARY


async def test_a_budget_grants_its_share_and_saves_a_few():
    budget = HedgeBudget(0.125)
    granted = 0
    for _ in range(1000):
        budget.earn()
        granted += budget.spend()
    for _ in range(1000):
        budget.earn()

    assert granted == 125
    assert [budget.spend() for _ in range(7)] == [True] * 5 + [False] * 2
