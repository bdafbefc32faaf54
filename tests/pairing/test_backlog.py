import random

import pytest
import trio

from gateway.domain import backlog
from gateway.domain.events.gateway import BacklogQueueFailed
from gateway.pairing.backlog import Rotation
from tests.pairing.harness import LABEL, virtual_time

pytestmark = virtual_time

QUEUES = tuple(backlog.queue_name(LABEL, index) for index in range(5))


@pytest.fixture
def rotation(events):
    return Rotation(queues=QUEUES, cooldown=30.0, rng=random.Random(1), observer=events)


async def test_every_queue_is_a_candidate_once(rotation):
    assert sorted(map(str, rotation.candidates())) == sorted(map(str, QUEUES))


async def test_the_first_queue_is_chosen_at_random_for_each_send(rotation):
    firsts = {rotation.candidates()[0] for _ in range(100)}

    assert firsts == set(QUEUES)


async def test_a_queue_that_failed_is_the_last_resort_for_the_cool_down(rotation):
    rotation.failed(QUEUES[0], "out")

    await trio.sleep(29.0)
    before = [rotation.candidates() for _ in range(20)]
    await trio.sleep(1.0)
    after = [rotation.candidates() for _ in range(100)]

    assert {candidates[-1] for candidates in before} == {QUEUES[0]}
    assert QUEUES[0] in {candidates[0] for candidates in after}


async def test_a_queue_that_worked_after_all_is_back_at_once(rotation):
    rotation.failed(QUEUES[0], "out")

    rotation.worked(QUEUES[0])

    assert QUEUES[0] in {rotation.candidates()[0] for _ in range(100)}


async def test_when_all_are_at_rest_all_are_still_candidates(rotation):
    for queue in QUEUES:
        rotation.failed(queue, "out")

    assert len(rotation.candidates()) == len(QUEUES)


async def test_a_queue_that_leaves_the_rotation_is_told_once(rotation, events):
    for _ in range(3):
        rotation.failed(QUEUES[0], "out")

    assert events.all == [BacklogQueueFailed(queue=QUEUES[0], seconds=30.0, reason="out")]


async def test_a_queue_that_failed_can_be_used_again_after_the_cool_down(rotation):
    rotation.failed(QUEUES[0], "out")
    rotation.failed(QUEUES[1], "out")

    await trio.sleep(29.0)
    before = rotation.usable
    await trio.sleep(1.0)

    assert (before, rotation.usable) == (3, 5)


async def test_a_failure_after_the_cool_down_is_told_anew(rotation, events):
    rotation.failed(QUEUES[0], "out")
    await trio.sleep(30.0)

    rotation.failed(QUEUES[0], "out again")

    assert [event.reason for event in events.of(BacklogQueueFailed)] == ["out", "out again"]
