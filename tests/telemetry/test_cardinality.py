"""However many names there are, the metrics have as many time series, and need as much memory."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from gateway.app.assembly.building import make_parts
from gateway.app.runtime import Runtime, Silence
from gateway.app.status.board import StatusBoard
from gateway.app.status.sections import QUEUES
from gateway.config.file import parse
from gateway.domain.access import Refusal
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import (
    DeadLettered,
    Diverted,
    EntityStateChanged,
    Event,
    SendFailed,
)
from gateway.domain.message import AcceptedBy, Message
from gateway.domain.status.figures import OTHERS
from gateway.domain.status.listening import MOST_QUEUES
from gateway.domain.status.process import Status
from gateway.frontends.refusals import Refusals
from gateway.telemetry.crowds import MOST_SUBJECTS
from gateway.telemetry.metrics import exposition
from gateway.telemetry.watch import GatewayWatch
from tests.harness.clocks import VirtualClock
from tests.harness.retained import entries
from tests.telemetry.metrics import value
from tests.wire.pairgate.status import OUTAGE, SECONDS

pytestmark = pytest.mark.slow

FEW: Final = 100
MANY: Final = 100_000
PAIR: Final = """
[namespaces.east]
url = "memory:"

[namespaces.west]
url = "memory:"

[pairing]
primary = "east"
secondary = "west"
"""


def series(answer: bytes) -> int:
    families = text_string_to_metric_families(answer.decode())
    return sum(len(family.samples) for family in families)


def about(name: str) -> list[Event]:
    """The story of an entity with that name, which fails over and returns."""
    entity = EntityPath(name)
    return [
        EntityStateChanged(
            entity=entity, before="primary", after="suspect", reason=name, cause="failed"
        ),
        Diverted(entity=entity, accepted_by=AcceptedBy.BACKLOG, queue=entity, messages=1),
        SendFailed(entity=entity, outcome="unknown", reason=name),
        DeadLettered(queue=entity, message_id=name, reason=name, description=name),
        EntityStateChanged(
            entity=entity, before="suspect", after="primary", reason=name, cause="sent"
        ),
    ]


async def test_events_about_many_names_make_no_more_series_and_need_no_more_memory(
    autojump_clock: trio.testing.MockClock,  # some figures are kept for each of the last seconds
) -> None:
    await trio.lowlevel.checkpoint()
    watch = GatewayWatch(Silence(), VirtualClock())
    refusals = Refusals(Silence())
    refused = refusals.at("amqp")

    def told() -> Status:
        assert OUTAGE.pair is not None
        syphon = attrs.evolve(OUTAGE.pair.syphon, dead_lettered_by_reason=watch.dead_lettered)
        pair = attrs.evolve(OUTAGE.pair, syphon=syphon, state_changes=tuple(watch.state_changes()))
        return attrs.evolve(OUTAGE, pair=pair, events=watch.counts())

    def tell(first: int, last: int) -> None:
        for number in range(first, last):
            for event in about(f"tenant-{number}/orders"):
                watch.report(event)
            refused(f"policy-{number}", Refusal.UNKNOWN_NAME)

    tell(
        0, MOST_SUBJECTS
    )  # from here on, events that repeat are forgotten as fast as they are remembered
    before, held = exposition(told()), entries(watch) + entries(refusals)
    tell(MOST_SUBJECTS, MANY)
    after = exposition(told())

    assert series(after) == series(before)
    assert len(after) < 1.01 * len(before)
    assert entries(watch) + entries(refusals) <= held
    assert refusals.counts == {("amqp", Refusal.UNKNOWN_NAME.value): MANY}
    causes = ("primary", "suspect", "failed")
    assert value(told(), "pairgate_entity_state_changes_total", *causes) == MANY


async def test_sends_to_many_names_make_no_more_series(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    config = parse(PAIR, source="test", folder=tmp_path, environ={}).config
    runtime = Runtime()

    async def told_after(stack: AsyncExitStack, names: range) -> bytes:
        for number in names:
            try:
                await pair.broker.send(EntityPath(f"queue-{number}"), [Message(body=b"x")])
            except BrokerError:
                continue
        return exposition(board.counts())

    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, config, runtime)
        pair = parts.pair
        assert pair is not None
        board = StatusBoard(config=config, runtime=runtime, refusals=parts.refusals, parts=parts)
        few = await told_after(stack, range(FEW))
        many = await told_after(stack, range(FEW, 20 * FEW))

    assert series(many) == series(few)
    assert b"queue-" not in many
    counts = [each.messages for each in board.counts().pair.sends]  # type: ignore[union-attr]
    assert sum(counts) == 20 * FEW


def test_a_listener_of_many_queues_tells_the_sum_of_the_further_ones() -> None:
    [queue] = OUTAGE.of(QUEUES)

    def listening(number: int) -> Status:
        queues = (attrs.evolve(queue, queue=f"queue-{name}") for name in range(number))
        return attrs.evolve(OUTAGE, sections={QUEUES: tuple(queues)})

    most, many = exposition(listening(MOST_QUEUES + 1)), exposition(listening(MANY))

    assert series(many) == series(most)
    assert len(many) < 1.05 * len(most)
    others = MANY - MOST_QUEUES
    told = listening(MANY)
    assert value(told, "pairgate_listener_completed_messages_total", OTHERS) == others * 4
    handled = ("process", "pairgate", OTHERS, "ValueError")
    assert value(told, "messaging_process_duration_seconds_count", *handled) == (
        others * SECONDS.count
    )
