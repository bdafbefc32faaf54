"""A drill runs to its end, and the verdict has the known figures."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import AcceptedBy, Message
from gateway.domain.operators.control import Operator
from gateway.domain.status.pair import (
    BacklogStatus,
    PairStatus,
    SendCount,
    SyphonStatus,
    TroubledEntity,
)
from gateway.domain.status.process import Status
from gateway.extensions.drill.command import code_of
from gateway.extensions.drill.drills import Drills
from gateway.extensions.drill.interceptor import Cut
from gateway.extensions.drill.order import DrillAnswer, DrillFault, DrillOrder
from gateway.extensions.drill.rehearsal import DrillOutcome, Load, Rehearsal
from gateway.extensions.drill.section import DRILL
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import Events

QUEUE = EntityPath("drill")
ANN = Operator(name="ann", peer="unknown")
SECONDS = 10.0


@attrs.define(eq=False)
class Gateway:
    """Diverts sends while a drill cuts its way, and moves them to the primary after it."""

    store: MemoryBroker
    drills: Drills
    way: Cut
    moves: bool = True  # whether a syphon does
    loses: int = 0  # diverted messages that vanish
    silent: bool = False
    depth_lasts: float = 0.0  # seconds for which a reading of the depth is told again
    moves_after: float = 0.0  # seconds after the drill
    restored: float | None = None  # trio.current_time() of the first look after the drill
    reading: tuple[datetime, int] | None = None  # of the depth
    backlog: list[Message] = attrs.field(factory=list)
    diverted: int = 0
    moved: int = 0

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        if self.way.striking(entity) is None:
            await self.store.send(entity, messages)
            return AcceptedBy.PRIMARY
        await trio.lowlevel.checkpoint()
        self.backlog += messages
        self.diverted += len(messages)
        return AcceptedBy.BACKLOG

    def open_receiver(self, entity: EntityPath) -> Any:
        return self.store.open_receiver(entity)

    async def read(self) -> Status:
        await trio.lowlevel.checkpoint()
        if self.silent:
            raise Failure("no gateway answers", ExitCode.TEMPORARY)
        cut = self.drills.drill is not None
        if self.restored is None and not cut and self.backlog:
            self.restored = trio.current_time()
        is_time = self.restored is not None and (
            trio.current_time() >= self.restored + self.moves_after
        )
        if is_time and self.moves and self.backlog:
            moved, self.backlog = self.backlog[self.loses :], []
            await self.store.send(QUEUE, moved)
            self.moved += len(moved)
        state = "secondary" if cut else "primary"
        now = VirtualClock()()
        lasts = timedelta(seconds=self.depth_lasts)
        if self.reading is None or now >= self.reading[0] + lasts:
            self.reading = now, len(self.backlog)
        as_of, pending = self.reading
        entity = TroubledEntity(
            entity="drill", state=state, since=now, reason="a drill", pinned=False
        )
        pair = PairStatus(
            label="east",
            states={"suspect": 0, "secondary": int(cut), "half-open": 0, "pinned": 0},
            entities=(entity,) if cut else (),
            backlog=BacklogStatus(
                wanted=1, usable=1, pending=pending, oldest_age=None, as_of=as_of
            ),
            syphon=SyphonStatus(
                running=self.moves,
                moved=self.moved,
                rate=0.0,
                last_moved=None,
                backing_off=0,
                dead_lettered=0,
            ),
            sends=(
                SendCount(accepted_by="backlog", outcome="accepted", messages=self.diverted),
                SendCount(accepted_by="primary", outcome="accepted", messages=1000),
            ),
            inflight=0,
            max_inflight=1,
            paused=0,
            pauses=0,
        )
        sections = {DRILL: self.drills.drill}
        return Status(at=now, started=now, namespaces=(), pair=pair, sections=sections)

    async def begin(self, order: DrillOrder) -> DrillAnswer:
        await trio.lowlevel.checkpoint()
        return self.drills.begin(order, ANN)

    async def end(self) -> DrillAnswer:
        await trio.lowlevel.checkpoint()
        return self.drills.end(ANN)


@pytest.fixture
async def gateway() -> Gateway:
    clock = VirtualClock()
    store = MemoryBroker(clock, random.Random(1))
    await store.create_queue(QUEUE, QueueProperties(lock_duration=timedelta(seconds=30)))
    cut = Cut()
    drills = Drills(clock=clock, observer=Events(), cuts={"east": cut}, longest=900.0)
    return Gateway(store, drills, cut)


def rehearsal(gateway: Gateway, told: list[str] | None = None, *, load: bool = True) -> Rehearsal:
    way = Load(broker=gateway, entity=QUEUE, run="1a", rate=10.0, producers=2)  # type: ignore[arg-type]
    lines = [] if told is None else told
    return Rehearsal(
        order=DrillOrder(seconds=SECONDS),
        load=way if load else None,
        wait=20.0,
        read=gateway.read,
        begin=gateway.begin,
        end=gateway.end,
        narrate=lines.append,
    )


async def left(gateway: Gateway) -> list[Any]:
    return [each.message.message_id for each in await gateway.store.peek(QUEUE, limit=1000)]


async def test_a_drill_that_loses_nothing_passes(gateway: Gateway, autojump_clock: Any) -> None:
    told: list[str] = []

    outcome = await rehearsal(gateway, told).play()

    assert outcome.passed
    assert code_of(outcome) is ExitCode.DONE
    assert outcome.sent == outcome.acknowledged == outcome.received
    assert (outcome.lost, outcome.twice, outcome.errors) == (0, 0, 0)
    assert outcome.diverted == outcome.moved == gateway.diverted > 100
    assert outcome.seconds == pytest.approx(SECONDS, abs=1.0)
    assert await left(gateway) == []
    assert told[0] == "2 producers send 20 messages/s to drill"
    assert told[1].startswith("the drill begins: namespace east, refuse, by ann until ")
    assert told[2:4] == ["drill is secondary", "drill is back on the primary"]


async def test_a_lost_message_is_a_broken_promise(gateway: Gateway, autojump_clock: Any) -> None:
    gateway.loses = 3

    outcome = await rehearsal(gateway).play()

    assert outcome.lost == 3
    assert outcome.findings == ("3 acknowledged messages were lost",)
    assert code_of(outcome) is ExitCode.FAILED


async def test_a_depth_from_before_the_last_diverted_message_is_no_empty_backlog(
    gateway: Gateway, autojump_clock: Any
) -> None:
    gateway.depth_lasts, gateway.moves_after = 18.0, 5.0

    outcome = await rehearsal(gateway).play()

    assert outcome.passed
    assert outcome.diverted == outcome.moved == gateway.diverted > 100
    assert (outcome.lost, outcome.received) == (0, outcome.acknowledged)
    assert outcome.empty_after is not None
    assert outcome.empty_after > gateway.moves_after


async def test_without_a_new_depth_it_is_open_whether_the_backlog_is_empty(
    gateway: Gateway, autojump_clock: Any
) -> None:
    gateway.depth_lasts, gateway.moves = 3600.0, False

    outcome = await rehearsal(gateway).play()

    assert (outcome.lost, outcome.empty_after) == (None, None)
    assert outcome.undecided[0].startswith("an unknown number of messages wait on the backlog")


async def test_without_a_syphon_it_is_open_what_was_lost(
    gateway: Gateway, autojump_clock: Any
) -> None:
    gateway.moves = False

    outcome = await rehearsal(gateway).play()

    assert (outcome.lost, outcome.moved, outcome.empty_after) == (None, None, None)
    assert outcome.received == (outcome.acknowledged or 0) - gateway.diverted
    assert outcome.undecided == (
        f"{gateway.diverted} messages wait on the backlog; this gateway has no syphon, and none is"
        " seen at the secondary",
    )
    assert code_of(outcome) is ExitCode.PARTLY


async def test_messages_of_others_are_left_where_they_are(
    gateway: Gateway, autojump_clock: Any
) -> None:
    await gateway.store.send(QUEUE, [Message(message_id="theirs", body=b"")])

    outcome = await rehearsal(gateway).play()

    assert "theirs" in await left(gateway)
    [delivery] = await gateway.store.peek(QUEUE, limit=1)
    assert (delivery.message.message_id, delivery.delivery_count) == ("theirs", 0)
    assert outcome.lost is None
    assert outcome.undecided == ("drill has messages of others, so it wasn't read to its end",)


async def test_a_copy_too_many_is_counted(gateway: Gateway, autojump_clock: Any) -> None:
    player = rehearsal(gateway)
    double = Message(message_id="drill-1a-0-1", body=b"")
    await gateway.store.send(QUEUE, [double])

    outcome = await player.play()

    assert (outcome.twice, outcome.lost) == (1, 0)


async def test_without_a_load_the_gateway_s_figures_are_left(
    gateway: Gateway, autojump_clock: Any
) -> None:
    outcome = await rehearsal(gateway, load=False).play()

    assert outcome == DrillOutcome(
        seconds=outcome.seconds,
        sent=None,
        acknowledged=None,
        errors=None,
        longest_stall=None,
        received=None,
        lost=None,
        twice=None,
        diverted=0,
        moved=0,
        back_after=outcome.back_after,
        empty_after=outcome.empty_after,
        undecided=(),
    )


async def test_a_drill_that_is_refused_leaves_that_of_another_operator(
    gateway: Gateway, autojump_clock: Any
) -> None:
    refusing = rehearsal(gateway)
    gateway.drills.begin(DrillOrder(seconds=60.0, fault=DrillFault.HANG), ANN)

    async def begin(order: DrillOrder) -> DrillAnswer:
        try:
            return await gateway.begin(order)
        except InvalidRequest as error:
            raise Failure(str(error)) from error

    refusing.begin = begin
    with pytest.raises(Failure, match="a drill is under way"):
        await refusing.play()

    assert gateway.drills.drill is not None


async def test_an_interrupted_drill_restores_the_way(gateway: Gateway, autojump_clock: Any) -> None:
    with trio.move_on_after(5.0):
        await rehearsal(gateway).play()

    assert gateway.drills.drill is None


async def test_a_gateway_that_falls_silent_ends_the_drill_and_the_load(
    gateway: Gateway, autojump_clock: Any
) -> None:
    async def fall_silent() -> None:
        await trio.sleep(5.0)
        gateway.silent = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fall_silent)
        with pytest.raises(Failure, match="no gateway answers"):
            await rehearsal(gateway).play()

    assert gateway.drills.drill is None
