"""The exit code of `pairgate redrive`, and its way through a running gateway."""

from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.app.failure import ExitCode
from gateway.extensions.redrive.order import Group, Redriven, RedriveOrder, Selection, Survey
from gateway.extensions.redrive.redriving import (
    RedriveInSlices,
    RedriveOptions,
    RedriveOutcome,
    may_move,
)

SOME = (Group(reason="a", entity="orders", messages=2, moves=2),)


@pytest.mark.parametrize(
    ("survey", "redriven", "code"),
    [
        (Survey(), None, ExitCode.DONE),
        (Survey(groups=SOME), None, ExitCode.DONE),
        (Survey(groups=SOME, problems=("q",)), None, ExitCode.PARTLY),
        (Survey(problems=("q",)), None, ExitCode.FAILED),
        (Survey(problems=("q",), is_outage=True), None, ExitCode.TEMPORARY),
        (Survey(groups=SOME), Redriven(moved=2), ExitCode.DONE),
        (Survey(groups=SOME), Redriven(moved=1, left=1), ExitCode.PARTLY),
        (Survey(groups=SOME), Redriven(moved=1, problems=("p",), is_outage=True), ExitCode.PARTLY),
        (Survey(groups=SOME), Redriven(left=2, problems=("p",)), ExitCode.FAILED),
        (Survey(groups=SOME), Redriven(problems=("p",), is_outage=True), ExitCode.TEMPORARY),
    ],
)
def test_all_some_none_and_not_now_are_told_apart(
    survey: Survey, redriven: Redriven | None, code: ExitCode
) -> None:
    assert RedriveOutcome(through="here", survey=survey, redriven=redriven).code is code


MOVE = RedriveOptions(
    order=RedriveOrder(selection=Selection(), queue="orders"), executes=True, rate=2.0
)
BEGAN = datetime(2026, 11, 30, tzinfo=UTC)
UNDATED = Survey(groups=(Group(reason="a", entity="orders", messages=5, moves=5),))
DATED = Survey(groups=(attrs.evolve(UNDATED.groups[0], oldest=BEGAN),))


@attrs.define(eq=False)
class Gateway:
    """Answers as a gateway with many dead letters, which moves all but those of a last call."""

    counted: Survey
    calls: int = 10
    orders: list[RedriveOrder] = attrs.field(factory=list)

    async def ask(self, order: RedriveOrder) -> Survey | Redriven:
        await trio.lowlevel.checkpoint()
        if not order.executes:
            return self.counted
        self.orders.append(order)
        return Redriven(moved=order.most if len(self.orders) < self.calls else 0)


@pytest.mark.parametrize(("counted", "before"), [(DATED, BEGAN), (UNDATED, None)])
async def test_slices_move_no_more_than_were_counted_and_compare_only_dates_that_are_known(
    counted: Survey, before: datetime | None
) -> None:
    gateway = Gateway(counted)
    driver = RedriveInSlices(gateway.ask, MOVE, BEGAN)
    told: list[Redriven] = []

    await driver.survey(Selection())
    done = await driver.run(Selection(), add=told.append, rate=MOVE.rate)

    assert [(each.most, each.selection.before) for each in gateway.orders] == [
        (2, before),
        (2, before),
        (1, before),
    ]
    assert (done.moved, sum(each.moved for each in told)) == (5, 5)


async def test_slices_end_where_one_moves_less_than_it_may() -> None:
    async def ask(order: RedriveOrder) -> Survey | Redriven:
        await trio.lowlevel.checkpoint()
        return Redriven(moved=1, unknown=1, problems=("p",)) if order.executes else UNDATED

    driver = RedriveInSlices(ask, MOVE, BEGAN)

    await driver.survey(Selection())
    done = await driver.run(Selection(), add=lambda _: None, rate=MOVE.rate)

    assert done == Redriven(moved=1, unknown=1, problems=("p",))


async def test_slices_go_on_where_some_dead_letters_could_not_be_counted() -> None:
    gateway = Gateway(attrs.evolve(UNDATED, problems=("orders: 7 of 12 are locked",)))
    driver = RedriveInSlices(gateway.ask, MOVE, BEGAN)

    await driver.survey(Selection())
    done = await driver.run(Selection(), add=lambda _: None, rate=MOVE.rate)

    assert done.moved == 18
    assert [each.most for each in gateway.orders] == [2] * 10


@pytest.mark.parametrize(
    ("survey", "expected"),
    [
        (Survey(), False),
        (Survey(groups=SOME), True),
        (Survey(groups=(Group(reason="a", entity="orders", messages=1),)), False),  # expired
        (Survey(groups=(Group(reason="a", entity=None, messages=1, problem="no envelope"),)), True),
        (Survey(problems=("orders: 12 of 12 dead letters weren't received",)), True),
    ],
)
def test_a_redrive_also_tries_those_that_a_look_did_not_get(survey: Survey, expected: bool) -> None:
    assert may_move(survey) is expected
