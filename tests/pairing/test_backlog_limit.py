"""A gateway that began while the secondary was down learns how much the backlog takes."""

import attrs
import pytest
import trio

from gateway.domain.entity import QueueProperties
from gateway.domain.errors import MessageTooLarge, NotAuthorized
from gateway.domain.events.gateway import BacklogReady
from gateway.domain.message import AcceptedBy, Message
from gateway.pairing.backlog_limit import BacklogLimit
from gateway.pairing.options import PairOptions
from gateway.pairing.provision import usable_backlog
from tests.domain.backoff import MIDDLE
from tests.harness.faults import Hang, Operation, Refuse
from tests.pairing.harness import LABEL, QUEUE, outcome_of, send, virtual_time

pytestmark = virtual_time

LARGE = Message(message_id="large", body=bytes(20_000))
WHILE_DOWN = [Refuse(), Hang(), Refuse(lambda: NotAuthorized("no right, for now"))]


async def begun(harness, fault):
    """A pair that was begun with a secondary in that trouble, whose backlog takes 10,000 bytes."""
    await harness.secondary.store.delete_queue(QUEUE)
    await harness.secondary.store.create_queue(QUEUE, QueueProperties(max_message_size=10_000))
    harness.secondary.fail(Refuse(), Operation.MANAGE)
    found = await usable_backlog(harness.secondary.broker, LABEL, 1)
    harness.secondary.heal()
    harness.secondary.fail(fault)
    pair = attrs.evolve(harness.parts(backlog_queues=1), backlog=found).assemble()
    await harness.nursery.start(pair.run)
    return pair


@pytest.mark.parametrize("fault", WHILE_DOWN, ids=["refused", "hangs", "unauthorized"])
async def test_a_message_that_an_outage_would_refuse_is_refused_once_the_secondary_has_told(
    harness, fault
):
    pair = await begun(harness, fault)

    before = await send(pair, LARGE)()
    await trio.sleep(30)
    harness.secondary.heal()
    await trio.sleep(120)

    assert before is AcceptedBy.PRIMARY
    assert isinstance(await outcome_of(send(pair, LARGE)), MessageTooLarge)
    assert [(each.wanted, each.usable) for each in harness.events.of(BacklogReady)] == [(1, 1)]


async def test_the_backlog_is_asked_later_and_later_and_each_ten_seconds_at_the_end(harness):
    harness.rng = MIDDLE  # no jitter
    await begun(harness, Refuse())
    started = trio.current_time()

    await trio.sleep(200.0)

    asked = sorted({at - started for at in harness.secondary.times(Operation.MANAGE)})
    orphans = 30.0  # the first reading of the depth
    assert asked == pytest.approx(sorted([0.0, 1.0, 3.0, 7.0, orphans, *range(15, 200, 10)]))


async def test_the_secondary_is_not_asked_again_where_it_has_told(harness):
    pair = await harness.pair()

    assert pair.limit is None


async def test_the_setup_has_a_minute_and_is_repeated(harness):
    began, setups = trio.current_time(), []
    pair = await harness.pair()

    async def setup():
        setups.append(trio.current_time() - began)
        if len(setups) == 1:
            await trio.sleep_forever()

    limit = BacklogLimit(
        secondary=harness.secondary.broker,
        admission=pair.broker.ways.admission,
        options=PairOptions(label=LABEL, backlog_queues=1),
        observer=harness.events,
        rng=MIDDLE,
        setup=setup,
    )
    await limit.run()

    assert setups == pytest.approx([0.0, 61.0])
    assert len(harness.events.of(BacklogReady)) == 1
