"""Dead letters of the backlog come home after their cause is mended, and none is lost."""

from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio

from gateway.domain import backlog
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    LockLost,
    MessageTooLarge,
    NotAuthorized,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.events.gateway import DeadLettered
from gateway.domain.message import DEAD_LETTER_REASON, DeadLetter
from gateway.extensions.redrive.events import DeadLettersRedriven
from gateway.extensions.redrive.order import Redriven, Selection
from tests.extensions.redrive.harness import (
    DEAD,
    EVERYTHING,
    EXPIRED,
    NOWHERE,
    SEND,
    SETTLE,
    SHORT,
    bury,
    redrive_of,
    rows,
    run,
)
from tests.harness.faults import Hang
from tests.pairing.harness import (
    BILLS,
    KEY,
    LABEL,
    ORDERS,
    QUEUE,
    envelope,
    message,
    refuse,
    virtual_time,
)

pytestmark = virtual_time

OTHER_SECRET = EnvelopeKey(id=KEY.id, key=b"another secret under the same id")
DATES = {"before", "after"}


async def test_a_message_that_a_wrong_secret_dead_lettered_is_home_once_the_secret_is_added(
    harness,
):
    await harness.divert(
        *(message(f"m{n}") for n in range(20)), envelope=envelope(keys=(OTHER_SECRET,))
    )
    scope = await harness.syphon(gone_grace=0)
    await trio.sleep(60)
    scope.cancel()
    assert {event.reason for event in harness.events.of(DeadLettered)} == {"EnvelopeMalformed"}
    both = envelope(keys=(KEY, OTHER_SECRET))

    before = await run(harness)
    done = await run(harness, codec=both)
    await harness.syphon(envelope=both)
    await trio.sleep(5)

    assert (before.moved, before.left) == (0, 20)
    assert done == Redriven(moved=20)
    assert sorted(await harness.primary.ids()) == sorted(f"m{n}" for n in range(20))
    assert await harness.secondary.ids(DEAD) == []


async def test_the_messages_of_one_batch_come_back_together(harness):
    sent = [message(f"m{n}") for n in range(3)]
    batch = [envelope().wrap(m, ORDERS, attempt="a1", now=harness.clock()) for m in sent]
    await harness.secondary.store.send(QUEUE, batch)
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        for delivery in await receiver.receive(len(batch)):
            await receiver.settle(delivery, DeadLetter(reason="EntityNotFound"))

    assert await run(harness) == Redriven(moved=3)


@pytest.mark.parametrize("key", [OTHER_SECRET, EnvelopeKey(id="2", key=b"another key")])
async def test_encrypted_messages_are_home_once_their_key_is_added(harness, key):
    theirs = envelope(keys=(key,), encrypts=True)
    await harness.divert(message("m1", properties={"color": "red"}), envelope=theirs)
    scope = await harness.syphon(gone_grace=0)
    await trio.sleep(60)
    scope.cancel()
    added = envelope(keys=(KEY, key))

    done = await run(harness, codec=added)
    await harness.syphon(envelope=added)
    await trio.sleep(60)
    (home,) = await harness.primary.messages()

    # Under an unknown id the message is left where it is; under a known one it is dead-lettered.
    assert done == Redriven(moved=int(key.id == KEY.id))
    assert (home.message_id, home.body, home.properties) == ("m1", b"body", {"color": "red"})


async def test_a_dead_letter_that_can_not_be_decrypted_names_its_entity(harness):
    theirs = envelope(keys=(OTHER_SECRET,), encrypts=True)
    await bury(harness, message("m1"), codec=theirs, reason="EnvelopeMalformed")

    survey = await redrive_of(harness).survey(EVERYTHING, peek=1)

    assert rows(survey) == {("EnvelopeMalformed", "orders"): (1, 0)}
    assert "another secret under that id" in survey.groups[0].problem


async def test_an_expired_encrypted_message_is_encrypted_again(harness):
    codec = envelope(encrypts=True)
    await bury(harness, message("m1", time_to_live=timedelta(seconds=1)), codec=codec)
    await trio.sleep(60)
    (before,) = await harness.secondary.messages(DEAD)

    assert await run(harness, Selection(reasons=(EXPIRED,)), codec=codec) == Redriven(moved=1)
    (revived,) = await harness.secondary.messages(QUEUE)

    assert revived.body != before.body
    assert codec.unwrap(revived).message.body == b"body"


async def test_a_message_of_a_missing_queue_comes_home_once_the_queue_is_made(harness):
    sent = message(properties={"color": "red"}, session_id="s", time_to_live=timedelta(days=1))
    await bury(harness, sent, entity=NOWHERE)
    await harness.primary.store.create_queue(NOWHERE, QueueProperties())

    assert await run(harness) == Redriven(moved=1)
    await harness.syphon()
    await trio.sleep(5)
    (home,) = await harness.primary.messages(NOWHERE)

    assert (home.message_id, home.body, home.session_id) == ("m1", b"body", "s")
    assert home.properties == {"color": "red"}


async def test_a_survey_counts_by_reason_entity_and_age_and_changes_nothing(harness):
    await bury(harness, message("m1"), message("m2"))
    await trio.sleep(60)
    await bury(harness, message("m3"), entity=BILLS, reason="MessageTooLarge")

    survey = await redrive_of(harness).survey(EVERYTHING)
    again = await redrive_of(harness).survey(EVERYTHING)

    assert rows(survey) == {
        ("EntityNotFound", "orders"): (2, 2),
        ("MessageTooLarge", "Bills"): (1, 1),
    }
    assert [harness.clock() - group.oldest for group in survey.groups] == [
        timedelta(seconds=60),
        timedelta(),
    ]
    assert again == survey
    assert await harness.secondary.ids(DEAD) == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    ("selection", "moved"),
    [
        ({"reasons": ("messagetoolarge",)}, ["b1"]),
        ({"entities": ("ord*",)}, ["o1", "o2"]),
        ({"entities": ("bills", "orders")}, ["b1", "o1", "o2"]),
        ({"before": -30}, ["o1"]),
        ({"after": -30}, ["b1", "o2"]),
        ({"after": -30, "entities": ("orders",)}, ["o2"]),
        ({"reasons": ("EntityDisabled",)}, []),
    ],
)
async def test_filters_choose(harness, selection, moved):
    await bury(harness, message("o1"))
    await trio.sleep(60)
    await bury(harness, message("o2"))
    await bury(harness, message("b1"), entity=BILLS, reason="MessageTooLarge")
    dates = {name: harness.after(value) for name, value in selection.items() if name in DATES}
    chosen = Selection(**{**selection, **dates})

    survey = await redrive_of(harness).survey(chosen)
    done = await run(harness, chosen)

    assert survey.moves == done.moved == len(moved)
    assert sorted(await harness.secondary.ids(QUEUE)) == moved
    assert len(await harness.secondary.ids(DEAD)) == 3 - len(moved)


async def test_an_expired_message_comes_back_only_by_its_reason_and_lives_anew(harness):
    await bury(harness, message(time_to_live=timedelta(minutes=1)), reason=EXPIRED)
    await trio.sleep(3600)

    assert rows(await redrive_of(harness).survey(EVERYTHING)) == {(EXPIRED, "orders"): (1, 0)}
    assert await run(harness) == Redriven()
    assert await run(harness, Selection(reasons=(EXPIRED,))) == Redriven(moved=1)
    await harness.syphon()
    await trio.sleep(5)
    (home,) = await harness.primary.messages()

    assert home.message_id == "m1"
    assert home.time_to_live is not None
    assert timedelta(seconds=50) < home.time_to_live <= timedelta(minutes=1)


async def test_an_expired_message_among_the_dead_letters_counts_as_expired(harness):
    await bury(harness, message(time_to_live=timedelta(minutes=1)))
    fresh = await redrive_of(harness).survey(EVERYTHING)
    await trio.sleep(61)
    late = await redrive_of(harness).survey(EVERYTHING)
    restarting = await redrive_of(harness, deducts=False).survey(EVERYTHING)

    assert rows(fresh) == {("EntityNotFound", "orders"): (1, 1)}
    assert rows(late) == {(EXPIRED, "orders"): (1, 0)}
    assert rows(restarting) == {("EntityNotFound", "orders"): (1, 1)}


async def test_a_message_that_the_syphon_wouldnt_take_is_shown_as_such_and_stays(harness):
    await harness.secondary.store.send(QUEUE, [message("foreign")])
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="EnvelopeMalformed"))
    await bury(harness, message("m1"))

    survey = await redrive_of(harness).survey(EVERYTHING)
    done = await run(harness, reason="mended")

    assert rows(survey) == {
        ("EnvelopeMalformed", None): (1, 0),
        ("EntityNotFound", "orders"): (1, 1),
    }
    assert [bool(group.problem) for group in survey.groups] == [False, True]
    assert (done.moved, done.left, len(done.problems)) == (1, 1, 1)
    told = DeadLettersRedriven(messages=1, left=1, reason="mended")
    assert harness.events.of(DeadLettersRedriven) == [told]
    assert await harness.secondary.ids(DEAD) == ["foreign"]


async def test_the_copy_on_the_backlog_is_the_message_that_was_diverted(harness):
    codec = envelope()
    wrapped = codec.wrap(message(), ORDERS, attempt="a1", now=harness.clock())
    await harness.secondary.store.send(QUEUE, [wrapped])
    async with harness.secondary.store.open_receiver(QUEUE) as receiver:
        (delivery,) = await receiver.receive(1)
        await receiver.settle(delivery, DeadLetter(reason="EntityNotFound"))

    await run(harness)
    (copy,) = await harness.secondary.messages(QUEUE)

    assert copy == wrapped
    assert DEAD_LETTER_REASON not in copy.properties


@pytest.mark.parametrize(
    ("fault", "is_outage", "told"),
    [
        (refuse(Unavailable, "no"), True, []),
        (refuse(OutcomeUnknown, "?"), True, ["m1"]),
        (refuse(NotAuthorized, "no"), False, []),
        (Hang(), True, ["m1"]),
    ],
)
async def test_a_message_that_the_backlog_doesnt_take_stays_a_dead_letter(
    harness, fault, is_outage, told
):
    await bury(harness, message("m1"), message("m2"))
    harness.secondary.fail(fault, SEND)

    done = await run(harness)

    assert (done.moved, done.is_outage, len(done.problems)) == (0, is_outage, 1 + len(told))
    assert done.unknown == len(told)
    # Each message with an unknown outcome is told by its id.
    assert all(f"message {each} is still a dead letter" in done.problems[0] for each in told)
    assert await harness.secondary.ids(DEAD) == ["m1", "m2"]


async def test_a_message_whose_completion_fails_is_on_the_backlog_and_a_dead_letter(harness):
    await bury(harness, message("m1"))
    harness.secondary.fail(refuse(Unavailable, "no"), SETTLE)

    done = await run(harness)

    assert done.moved == 1
    assert "still dead letters" in done.problems[0]
    assert await harness.secondary.ids(DEAD) == await harness.secondary.ids(QUEUE) == ["m1"]


async def test_a_dead_letter_whose_completion_failed_is_completed_when_it_comes_again(harness):
    await bury(harness, message("m1"), message("m2"), queue=SHORT)
    harness.secondary.fail(refuse(LockLost, "too late"), SETTLE, times=1)

    done = await run(harness)

    assert done == Redriven(moved=2)
    assert sorted(await harness.secondary.ids(SHORT)) == ["m1", "m2"]
    assert await harness.secondary.ids(SHORT.dead_letter) == []


async def test_locks_that_run_out_while_the_rate_holds_messages_back_cost_no_copy(harness):
    await bury(harness, *(message(f"m{n}") for n in range(30)), queue=SHORT)
    await bury(harness, *(message(f"n{n}") for n in range(30)))

    done = await run(harness, rate=3)

    assert done == Redriven(moved=60)
    assert len(await harness.secondary.ids(SHORT)) == len(await harness.secondary.ids(QUEUE)) == 30
    assert await harness.secondary.ids(SHORT.dead_letter) == []


async def test_a_message_that_is_dead_lettered_again_is_moved_once(harness):
    await bury(harness, *(message(f"m{n}") for n in range(5)), entity=NOWHERE)
    await harness.syphon(gone_grace=0)

    with trio.fail_after(600):
        done = await run(harness, rate=1)
    await trio.sleep(60)

    assert done.moved == 5
    assert len(await harness.secondary.ids(DEAD)) == 5


async def test_no_more_go_in_a_second_than_the_rate_says(harness):
    await bury(harness, *(message(f"m{n}") for n in range(21)))
    began = trio.current_time()

    await run(harness, rate=2)

    assert 10 <= trio.current_time() - began < 11


async def test_all_backlog_queues_are_looked_at_and_each_move_is_told(harness):
    other = backlog.queue_name(LABEL, 3)
    await harness.secondary.store.create_queue(other, backlog.QUEUE_PROPERTIES)
    await bury(harness, message("m1"))
    await bury(harness, message("m2"), message("m3"), queue=other)
    told = []

    done = await redrive_of(harness).run(EVERYTHING, add=told.append)

    assert (done, told) == (Redriven(moved=3), [Redriven(moved=1)] * 3)
    assert await harness.secondary.ids(other) == ["m2", "m3"]


async def test_no_more_are_moved_than_was_asked_for(harness):
    await bury(harness, *(message(f"m{n}") for n in range(5)))

    done = await redrive_of(harness).run(EVERYTHING, add=lambda _: None, most=3)

    assert done == Redriven(moved=3)
    assert len(await harness.secondary.ids(DEAD)) == 2


async def test_those_that_are_refused_do_not_count_among_as_many_as_were_asked_for(harness):
    await bury(harness, *(message(f"m{n}") for n in range(6)))
    harness.secondary.fail(refuse(MessageTooLarge, "no"), SEND, times=2)

    done = await redrive_of(harness).run(EVERYTHING, add=lambda _: None, most=2)

    assert (done.moved, done.left) == (2, 2)
    assert await harness.secondary.ids(QUEUE) == ["m2", "m3"]


async def test_more_dead_letters_than_fit_on_a_page_are_counted_and_moved(harness):
    await bury(harness, *(message(f"m{n}") for n in range(250)))

    survey = await redrive_of(harness).survey(EVERYTHING)
    done = await run(harness)

    assert survey.messages == survey.moves == done.moved == 250


async def test_a_queue_that_detects_duplicates_isnt_redriven_into(harness):
    other = backlog.queue_name(LABEL, 3)
    properties = attrs.evolve(backlog.QUEUE_PROPERTIES, requires_duplicate_detection=True)
    await harness.secondary.store.create_queue(other, properties)
    await bury(harness, message("m1"), queue=other)

    done = await run(harness)

    assert done.moved == 0
    assert "duplicates" in done.problems[0]
    assert await harness.secondary.ids(other.dead_letter) == ["m1"]


@attrs.frozen
class Plain:
    """A namespace that can neither list its queues, nor count dead letters, nor show messages."""

    inner: object

    async def list_queues(self, prefix="", *, skip=0, top=100):
        raise NotAuthorized("no")

    async def inspect(self, entity):
        raise NotAuthorized("no")

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)

    def open_receiver(self, entity):
        return self.inner.open_receiver(entity)


@attrs.frozen
class Waiting:
    """A receiver that can't say that nothing is available."""

    inner: object

    async def receive(self, limit):
        return await self.inner.receive(limit)

    async def settle(self, delivery, settlement):
        await self.inner.settle(delivery, settlement)


class PlainWaiting(Plain):
    """Such a namespace, where a receive waits until a message comes."""

    @asynccontextmanager
    async def open_receiver(self, entity):
        async with self.inner.open_receiver(entity) as receiver:
            yield Waiting(receiver)


@pytest.mark.parametrize(("plain", "waited"), [(Plain, 0), (PlainWaiting, 3)])
async def test_where_nothing_can_be_listed_counted_or_shown_it_works_too(harness, plain, waited):
    await bury(harness, message("m1"), message("m2"))
    source = plain(harness.secondary.store)

    began = trio.current_time()
    survey = await redrive_of(harness, source=source).survey(EVERYTHING)
    took = trio.current_time() - began
    there = await harness.secondary.ids(DEAD)
    done = await run(harness, source=source)

    assert rows(survey) == {("EntityNotFound", "orders"): (2, 2)}
    assert took == pytest.approx(waited, abs=0.001)  # until the queue counts as empty
    assert there == ["m1", "m2"]
    assert done == Redriven(moved=2)


@attrs.frozen
class WithoutDeadLetters(Plain):
    """A namespace whose queues have no dead letters, as plain AMQP has none."""

    async def inspect(self, entity):
        return await self.inner.inspect(entity)

    def open_receiver(self, entity):
        return self.inner.open_receiver(EntityPath(f"{entity.parent}/none"))


async def test_a_namespace_without_dead_letters_says_so(harness):
    source = WithoutDeadLetters(Uncounted(harness.secondary.store))

    survey = await redrive_of(harness, source=source).survey(EVERYTHING)
    done = await run(harness, source=source)

    assert survey.messages == done.moved == 0
    assert survey.problems == done.problems
    assert "no dead-letter sub-queue that can be received from" in survey.problems[0]


@attrs.frozen
class Uncounted:
    """A namespace that doesn't report the number of a queue's dead letters."""

    inner: object

    async def inspect(self, entity):
        return attrs.evolve(await self.inner.inspect(entity), dead_lettered=None)

    def open_receiver(self, entity):
        return self.inner.open_receiver(entity)


@pytest.mark.parametrize("can_list", [True, False])
async def test_a_label_without_backlog_queues_is_an_error(harness, can_list):
    source = harness.secondary.store if can_list else WithoutDeadLetters(harness.secondary.store)
    nobodys = attrs.evolve(redrive_of(harness, source=source), label="nobody")

    with pytest.raises(EntityNotFound, match="nobody/x-servicebus-transfer"):
        await nobodys.survey(EVERYTHING)


async def test_a_silent_namespace_is_an_outage(harness):
    harness.secondary.fail(Hang())

    with pytest.raises(BrokerError) as caught:
        await redrive_of(harness).survey(EVERYTHING)

    assert caught.value.counts_as_outage


async def test_some_dead_letters_are_shown_without_their_bodies(harness):
    await bury(harness, message("a"), message("b"), message("c"), entity=NOWHERE)
    await bury(harness, message("d"), reason=EXPIRED)

    counted = await redrive_of(harness).survey(EVERYTHING)
    peeked = await redrive_of(harness).survey(Selection(entities=("nowhere",)), 2)

    assert counted.samples == ()
    assert peeked.messages == 3
    assert [
        (each.message_id, each.entity, each.reason, each.size, each.problem)
        for each in peeked.samples
    ] == [("a", "nowhere", "EntityNotFound", 4, ""), ("b", "nowhere", "EntityNotFound", 4, "")]
