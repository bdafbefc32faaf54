"""
A misspelt queue gets messages in an outage. Status shows at once that they wait, and how long;
after `gone_grace` they are dead letters with their reason, however the entity stands.
"""

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.events.gateway import DeadLettered
from gateway.domain.failover import State
from gateway.domain.message import AcceptedBy
from gateway.domain.status.pair import Cause
from tests.harness.faults import Refuse
from tests.pairing.harness import KEY, QUEUE, envelope, message, reaches, send, virtual_time

pytestmark = virtual_time

GRACE = 600.0
MISSPELT = EntityPath("misspelt")


async def misspelt(harness, *, interval):
    """A pair after an outage in which a send to a misspelt queue was diverted."""
    pair = await harness.pair(failover_interval=interval)
    harness.primary.fail(Refuse())
    assert await send(pair, message("m1"), entity=MISSPELT)() is AcceptedBy.BACKLOG
    harness.primary.heal()
    return pair


def syphon_of(harness, pair=None, **options):
    states = None if pair is None else pair.states
    return harness.make_syphon(states=states, gone_grace=GRACE, **options)


@pytest.mark.parametrize(
    ("interval", "state"), [(0.0, State.SECONDARY), (60.0, State.SUSPECT)], ids=["out", "suspect"]
)
async def test_messages_of_a_missing_entity_are_a_problem_at_once_and_dead_letters_after_the_grace(
    harness, interval, state
):
    pair = await misspelt(harness, interval=interval)
    syphon = syphon_of(harness, pair)
    await harness.nursery.start(syphon.run)
    await trio.sleep(60)
    (waiting,) = syphon.waiting()

    assert pair.states.state_of(MISSPELT) is state
    assert (waiting.cause, waiting.name) == (Cause.GONE, "misspelt")
    assert waiting.seconds + waiting.left == GRACE
    assert waiting.seconds > 50

    await trio.sleep(GRACE - 70)
    assert harness.events.of(DeadLettered) == []
    await trio.sleep(140)

    assert [(each.message_id, each.reason) for each in harness.events.of(DeadLettered)] == [
        ("m1", "EntityNotFound")
    ]
    assert await harness.secondary.ids(QUEUE.dead_letter) == ["m1"]
    assert syphon.waiting() == []


@pytest.mark.parametrize("interval", [0.0, 60.0])
async def test_a_queue_that_is_made_within_the_grace_gets_its_messages(harness, interval):
    pair = await misspelt(harness, interval=interval)
    syphon = syphon_of(harness, pair)
    await harness.nursery.start(syphon.run)
    await trio.sleep(GRACE / 2)
    await harness.primary.store.create_queue(MISSPELT, QueueProperties())
    await trio.sleep(GRACE)

    assert await harness.primary.ids(MISSPELT) == ["m1"]
    assert harness.events.of(DeadLettered) == []
    assert syphon.waiting() == []


async def test_a_queue_that_an_operator_pinned_is_waited_for_without_an_end(harness):
    pair = await misspelt(harness, interval=0.0)
    await harness.nursery.start(syphon_of(harness, pair).run)
    await trio.sleep(60)
    pair.states.force_over(MISSPELT)
    await trio.sleep(3 * GRACE)

    assert harness.events.of(DeadLettered) == []


async def test_a_failed_over_queue_of_which_nothing_is_known_is_waited_for_without_an_end(harness):
    pair = await misspelt(harness, interval=0.0)
    harness.primary.fail(Refuse())
    await harness.nursery.start(syphon_of(harness, pair).run)
    await reaches(pair.states, State.SECONDARY, MISSPELT)
    await trio.sleep(3 * GRACE)

    assert harness.events.of(DeadLettered) == []


async def test_a_syphon_that_is_started_again_waits_for_a_whole_grace_and_no_longer(harness):
    await misspelt(harness, interval=0.0)
    scope = await harness.syphon(gone_grace=GRACE)
    await trio.sleep(GRACE - 60)
    scope.cancel()
    again = syphon_of(harness)
    await harness.nursery.start(again.run)
    await trio.sleep(GRACE - 60)
    before = list(harness.events.of(DeadLettered))
    await trio.sleep(180)

    assert before == []
    assert [each.reason for each in harness.events.of(DeadLettered)] == ["EntityNotFound"]


async def test_messages_with_a_wrong_mac_are_a_problem_until_they_are_dead_letters(harness):
    wrong = EnvelopeKey(id=KEY.id, key=b"another secret")
    await harness.divert(message("m1"), envelope=envelope(keys=(wrong,)))
    syphon = syphon_of(harness)
    await harness.nursery.start(syphon.run)
    await trio.sleep(60)
    (waiting,) = syphon.waiting()
    await trio.sleep(GRACE + 90)

    assert (waiting.cause, waiting.name) == (Cause.WRONG_MAC, KEY.id)
    assert [each.reason for each in harness.events.of(DeadLettered)] == ["EnvelopeMalformed"]
    assert syphon.waiting() == []
