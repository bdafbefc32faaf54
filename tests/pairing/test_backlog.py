import random
from collections.abc import Sequence

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath
from gateway.domain.envelope_fields import place_of
from gateway.domain.errors import BrokerError, MessageTooLarge, OutcomeUnknown, Unavailable
from gateway.domain.events.gateway import BacklogQueueFailed
from gateway.domain.identity import fingerprint
from gateway.domain.message import AcceptedBy, Message
from gateway.moments import Moments
from gateway.pairing.backlog import NO_PLACES, BacklogSender, Rotation
from gateway.pairing.options import OnUnknown
from gateway.pairing.sending import Batch, Sending
from gateway.pairing.syphon.destination import Destination
from tests.harness.clocks import VirtualClock
from tests.pairing.harness import LABEL, ORDERS, envelope, message, virtual_time

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


# Sends to the queues


@attrs.define(eq=False)
class Secondary:
    """Notes each attempt: the queue, the messages, and whether it might fail fast."""

    refuses: dict[EntityPath, BrokerError] = attrs.field(factory=dict)
    hangs: set[EntityPath] = attrs.field(factory=set)
    attempts: list[tuple[EntityPath, list[object], bool]] = attrs.field(factory=list)
    sent: list[Message] = attrs.field(factory=list)

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._take(entity, messages, False)

    async def try_send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._take(entity, messages, True)

    async def _take(self, entity: EntityPath, messages: Sequence[Message], fast: bool) -> None:
        self.attempts.append((entity, [each.message_id for each in messages], fast))
        await trio.lowlevel.checkpoint()
        if entity in self.hangs:
            await trio.sleep_forever()
        if entity in self.refuses:
            raise self.refuses[entity]
        self.sent += messages

    @property
    def queues(self) -> list[EntityPath]:
        return [queue for queue, *_ in self.attempts]


@pytest.fixture
def secondary() -> Secondary:
    return Secondary()


@pytest.fixture
def make(secondary, rotation, events):
    """Makes the sender of that secondary, whose choices the test gives."""

    def make(*choices: EntityPath | None) -> BacklogSender:
        return BacklogSender(
            broker=secondary,
            rotation=rotation,
            envelope=envelope(),
            new_id=lambda: "attempt",
            observer=events,
            destination=Destination(primary=secondary, addresses=("amqp://east",)),
            choices=[lambda sending, batch, queue=queue: queue for queue in choices],
        )

    return make


def sending(*ids: str, seconds: float = 30.0) -> Sending:
    return Sending(
        entity=ORDERS,
        batches=[Batch([message(each)]) for each in ids or ("m1",)],
        taken=Moments(VirtualClock()).now(),
        deadline=trio.current_time() + seconds,
        attempt_timeout=10.0,
        on_unknown=OnUnknown.DIVERT,
        may_divert=True,
    )


FULL = Unavailable("full")
FAULT = MessageTooLarge("too large")


async def test_each_queue_is_tried_until_one_accepts(make, secondary, rotation):
    secondary.refuses = dict.fromkeys(QUEUES[:4], FULL)
    one = sending()
    accepted = await make().send_to_backlog(one)

    assert accepted
    assert one.batches[0].accepted_by is AcceptedBy.BACKLOG
    assert secondary.queues[-1] == QUEUES[4]
    assert len(set(secondary.queues)) == len(secondary.queues)
    assert {fast for *_, fast in secondary.attempts} == {True}
    assert rotation.usable == 6 - len(secondary.queues)


async def test_a_send_that_all_queues_fail_has_their_last_error(make, secondary):
    secondary.refuses = dict.fromkeys(QUEUES, FULL)
    one = sending()

    assert await make().send_to_backlog(one) is False
    assert sorted(map(str, secondary.queues)) == sorted(map(str, QUEUES))
    assert one.batches[0].errors == {AcceptedBy.BACKLOG: FULL}


async def test_a_message_that_one_queue_finds_faulty_is_tried_on_no_other(
    make, secondary, rotation
):
    secondary.refuses = dict.fromkeys(QUEUES, FAULT)
    one = sending()

    assert not await make().send_to_backlog(one)
    assert len(secondary.attempts) == 1
    assert one.batches[0].fault is FAULT
    assert rotation.usable == 5


async def test_a_quarter_of_the_time_is_kept_while_queues_hang(make, secondary):
    secondary.hangs = set(QUEUES)
    one, began = sending(), trio.current_time()

    assert not await make().send_to_backlog(one)
    assert (len(secondary.attempts), trio.current_time() - began) == (3, 25.0)
    assert one.backlog_hangs


async def test_a_send_may_end_with_the_first_queue_that_hangs(make, secondary):
    secondary.hangs = set(QUEUES)

    assert not await make().send_to_backlog(sending(), until_one_hangs=True)
    assert len(secondary.attempts) == 1
    secondary.hangs, secondary.refuses = set(), dict.fromkeys(QUEUES, FULL)
    assert not await make().send_to_backlog(sending(), until_one_hangs=True)
    assert len(secondary.attempts) == 6


async def test_no_queue_is_tried_without_time(make, secondary):
    assert not await make(QUEUES[0]).send_to_backlog(sending(seconds=0.001))
    assert secondary.attempts == []


# The queue that a batch goes to before any other one


@pytest.mark.parametrize("choices", [(QUEUES[3],), (None, QUEUES[3], QUEUES[1])])
async def test_the_first_choice_goes_before_all_queues(make, secondary, choices):
    for _ in range(10):
        assert await make(*choices).send_to_backlog(sending())

    assert set(secondary.queues) == {QUEUES[3]}
    assert {fast for *_, fast in secondary.attempts} == {True}


async def test_a_chosen_queue_that_fails_is_followed_by_the_others(make, secondary):
    secondary.refuses = {QUEUES[3]: FULL}
    one = sending()

    assert await make(QUEUES[3]).send_to_backlog(one)
    assert secondary.queues[0] == QUEUES[3]
    assert len(secondary.queues) == 2


async def test_a_chosen_queue_that_cools_down_is_not_tried_first(make, secondary, rotation):
    rotation.failed(QUEUES[3], "full")

    assert await make(QUEUES[3]).send_to_backlog(sending())
    assert QUEUES[3] not in secondary.queues


async def test_a_faulty_batch_is_sent_to_no_chosen_queue(make, secondary):
    one = sending("m1", "m2")
    one.batches[0].fault = FAULT

    assert not await make(QUEUES[3]).send_to_backlog(one)
    assert secondary.attempts == [(QUEUES[3], ["m2"], True)]


async def test_batches_go_together_to_the_queue_of_their_choice(make, secondary):
    queues = {"m1": QUEUES[0], "m2": QUEUES[1], "m3": QUEUES[0], "m4": None}
    sender = make()
    sender.choices = [lambda _, batch: queues[batch.messages[0].message_id]]
    four = sending(*queues)

    assert await sender.send_to_backlog(four)
    assert [(queue, ids) for queue, ids, _ in secondary.attempts[:2]] == [
        (QUEUES[0], ["m1", "m3"]),
        (QUEUES[1], ["m2"]),
    ]
    assert secondary.attempts[2][1] == ["m4"]


# One queue, for messages that keep an order


@pytest.mark.parametrize("has_other_way", [True, False])
async def test_messages_in_order_go_to_one_queue_with_their_places(make, secondary, has_other_way):
    places = [f"{'0' * 32}.1.{number}" for number in (1, 2)]
    two = sending("m1", "m2")
    done = await make().send_to_queue(two, QUEUES[2], iter(places), has_other_way=has_other_way)

    assert done is True
    assert secondary.queues == [QUEUES[2]]
    assert [place_of(each) for each in secondary.sent] == places


async def test_a_queue_for_an_order_that_fails_is_the_only_one_tried(make, secondary):
    secondary.refuses = dict.fromkeys(QUEUES, FULL)

    assert await make().send_to_queue(sending(), QUEUES[2], NO_PLACES, has_other_way=True) is False
    assert secondary.attempts == [(QUEUES[2], ["m1"], True)]
    await make().send_to_queue(sending(), QUEUES[2], NO_PLACES, has_other_way=False)
    assert secondary.attempts[1:] == [(QUEUES[2], ["m1"], False)]


async def test_a_queue_for_an_order_gets_no_faulty_batch_and_none_without_time(make, secondary):
    faulty = sending("m1")
    faulty.batches[0].fault = FAULT

    assert not await make().send_to_queue(faulty, QUEUES[2], NO_PLACES, has_other_way=True)
    late = sending(seconds=0.001)
    assert not await make().send_to_queue(late, QUEUES[2], NO_PLACES, has_other_way=True)
    assert secondary.attempts == []


# Results of an attempt


async def test_a_queue_that_accepts_cools_down_no_more(make, secondary, rotation):
    for queue in QUEUES:
        rotation.failed(queue, "full")
    await make().send_to_backlog(sending())

    assert rotation.usable == 1


async def test_a_diverted_message_names_its_primary(make, secondary):
    await make().send_to_backlog(sending())

    assert envelope().unwrap(secondary.sent[0]).primary == fingerprint("amqp://east")


# The last attempts


class Patient:
    """The same secondary without a memory of failed connections."""

    def __init__(self, secondary: Secondary) -> None:
        self._secondary = secondary

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self._secondary.send(entity, messages)


async def test_a_secondary_that_failed_fast_is_connected_to_once_more(make, secondary):
    secondary.refuses = dict.fromkeys(QUEUES, FULL)
    failed = await make().send_to_backlog_after_all(sending())
    secondary.refuses.clear()
    accepted = await make().send_to_backlog_after_all(sending())

    assert (failed, accepted) == (False, True)
    assert [fast for *_, fast in secondary.attempts] == [False, False]


@pytest.mark.parametrize(
    ("error", "attempts"), [(FULL, 0), (OutcomeUnknown("the connection broke"), 1)]
)
async def test_a_secondary_that_remembers_nothing_is_asked_again_if_its_connection_broke(
    make, secondary, error, attempts
):
    sender = make()
    sender.broker = Patient(secondary)
    one = sending()
    one.batches[0].errors[AcceptedBy.BACKLOG] = error

    assert await sender.send_to_backlog_after_all(one) is bool(attempts)
    assert len(secondary.attempts) == attempts


async def test_a_faulty_message_has_no_last_attempt(make, secondary):
    one = sending()
    one.batches[0].fault = FAULT

    assert not await make().send_to_backlog_after_all(one)
    assert secondary.attempts == []


async def test_queues_that_hang_are_followed_by_others_while_a_whole_attempt_has_time(
    make, secondary
):
    secondary.hangs = set(QUEUES)
    one, began = sending(seconds=45.0), trio.current_time()
    one.backlog_hangs = True
    sender = make()
    sender.broker = Patient(secondary)

    assert not await sender.send_to_backlog_after_all(one)
    assert (len(secondary.attempts), trio.current_time() - began) == (3, 30.0)


async def test_last_attempts_are_a_second_apart(make, secondary):
    secondary.refuses = dict.fromkeys(QUEUES, FULL)
    one, began = sending(seconds=25.0), trio.current_time()
    one.backlog_hangs = True

    assert not await make().send_to_backlog_after_all(one)
    assert (len(secondary.attempts), trio.current_time() - began) == (6, 6.0)
