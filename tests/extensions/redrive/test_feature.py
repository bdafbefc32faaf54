"""The control call of a redrive, executed for the backlog or for the spool."""

from typing import Any, Final

import attrs
import pytest
import trio

from gateway.domain.errors import NotSupported
from gateway.domain.operators.control import Operator
from gateway.extensions.redrive.feature import executor
from gateway.extensions.redrive.order import Group, Redriven, RedriveOrder, Selection, Survey

SELECTED: Final = Selection(reasons=("TTLExpired",), entities=("orders/*",))
COUNTED: Final = Survey(groups=(Group(reason="TTLExpired", entity="q", messages=3),))
MOVE: Final = RedriveOrder(selection=SELECTED, executes=True, rate=2.5, most=7)


@attrs.define(eq=False)
class Redrives:
    """Remembers the surveys and moves that it is asked for."""

    asked: list[Any] = attrs.field(factory=list)

    async def survey(self, selection: Selection, peek: int = 0, preview: int = 0) -> Survey:
        await trio.lowlevel.checkpoint()
        self.asked.append((selection, peek))
        return COUNTED

    async def run(self, selection: Selection, **limits: Any) -> Redriven:
        await trio.lowlevel.checkpoint()
        self.asked.append((selection, limits["rate"], limits["most"]))
        return Redriven(moved=3)


async def test_dead_letters_are_those_of_the_backlog_or_of_the_spool() -> None:
    backlog, spool = Redrives(), Redrives()
    ann = Operator(name="ann", peer="here")
    both: Any = (backlog, spool)
    without: Any = (backlog, None)
    redrive, alone = executor(*both), executor(*without)
    of_spool = RedriveOrder(selection=Selection(), spool=True)

    counted = await redrive.execute(RedriveOrder(selection=SELECTED, peek=7), ann)
    moved = await redrive.execute(MOVE, ann)
    await redrive.execute(of_spool, ann)
    with pytest.raises(NotSupported, match="no spool"):
        await alone.execute(of_spool, ann)

    assert (counted, moved) == (COUNTED, Redriven(moved=3))
    assert backlog.asked == [(SELECTED, 7), (SELECTED, 2.5, 7)]
    assert spool.asked == [(Selection(), 0)]
