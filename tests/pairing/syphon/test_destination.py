"""A syphon moves only the messages that were meant for its primary."""

import random

import attrs
import pytest
import trio

from gateway.capabilities import Identifies, send_accepted_by
from gateway.domain.errors import NotAuthorized, NotSupported, Unavailable
from gateway.domain.events.gateway import LeftUntouched, PrimaryReplaced
from gateway.domain.identity import Identity, fingerprint
from gateway.domain.message import AcceptedBy
from gateway.forwarding_broker import ForwardingBroker
from gateway.pairing.syphon.destination import ASK_AGAIN, Destination
from gateway.ports import Broker
from tests.harness.faults import Operation, Refuse
from tests.pairing.harness import ORDERS, QUEUE, envelope, message, virtual_time

pytestmark = virtual_time

EAST, OTHER = Identity("store", "east"), Identity("store", "other")
MEMORY = Identity("memory", "1")


@attrs.define(eq=False)
class Named(ForwardingBroker):
    """A namespace that reports its identity, or fails to."""

    broker: Broker | None = None
    says: Identity | Exception = EAST
    asked: int = 0

    adds = frozenset((Identifies,))

    @property
    def inner(self):
        return self.broker

    async def send(self, entity, messages):
        await self.inner.send(entity, messages)

    async def identity(self) -> Identity:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def destination(says=EAST, **options):
    return Destination(primary=Named(says=says), **options)


def put_for(harness, primary):
    wrapped = envelope().wrap(
        message(), ORDERS, attempt=harness.new_id(), now=harness.clock(), primary=primary
    )
    return harness.secondary.store.send(QUEUE, [wrapped])


async def test_an_identity_goes_before_an_address(harness):
    made = destination(addresses=("amqp://east",))
    before = made.fingerprint
    await made.ask()

    assert before == fingerprint("amqp://east")
    assert made.fingerprint == fingerprint("store:east")


@pytest.mark.parametrize("says", [MEMORY, NotSupported("no"), NotAuthorized("no")])
async def test_where_no_lasting_identity_is_told_the_address_stands_for_it(harness, says):
    made = destination(says, addresses=("amqp://east", "amqp://east-1"))
    await made.ask()

    assert made.is_known
    assert made.fingerprint == fingerprint("amqp://east")


async def test_a_message_meant_for_one_of_its_names_is_its_own(harness):
    made = destination(addresses=("a", "b"), adopted=frozenset({"adopted"}))
    await made.ask()
    meant = {"", "adopted", *map(fingerprint, ("store:east", "a", "b"))}

    assert all(map(made.accepts, meant))
    assert not made.accepts(fingerprint("store:other"))


async def test_a_destination_that_was_named_takes_all(harness):
    made = destination(takes_all=True)

    assert made.is_known
    assert made.accepts(fingerprint("store:other"))


async def test_a_primary_that_is_down_is_asked_until_it_answers(harness):
    primary = Named(says=Unavailable("down"))
    made = Destination(primary=primary, observer=harness.events)
    harness.nursery.start_soon(made.run)
    await trio.sleep(30.0)
    known, asked = made.is_known, primary.asked
    primary.says = EAST
    await trio.sleep(5.5)

    assert not known
    assert 8 <= asked <= 14
    assert made.identity == EAST


async def test_another_namespace_in_the_primarys_place_is_noticed(harness):
    primary = Named()
    made = Destination(primary=primary, observer=harness.events)
    harness.nursery.start_soon(made.run)
    await trio.sleep(1.0)
    primary.says = OTHER
    await trio.sleep(ASK_AGAIN)

    assert made.identity == OTHER
    [event] = harness.events.of(PrimaryReplaced)
    assert (event.was, event.now) == (fingerprint("store:east"), fingerprint("store:other"))


async def test_the_answer_of_the_primary_before_a_restart_counts_until_it_says_otherwise(harness):
    made = destination(OTHER, observer=harness.events)
    made.restore(EAST)
    before = made.fingerprint
    await made.ask()

    assert before == fingerprint("store:east")
    assert made.fingerprint == fingerprint("store:other")
    assert len(harness.events.of(PrimaryReplaced)) == 1


async def test_a_primary_that_was_replaced_while_nobody_ran_is_noticed(harness):
    made = destination(OTHER, observer=harness.events)
    await made.ask()
    made.restore(EAST)

    assert made.identity == OTHER
    assert len(harness.events.of(PrimaryReplaced)) == 1


# The pair and the syphon


async def test_a_diverted_message_says_which_primary_it_was_meant_for(harness):
    parts = attrs.evolve(
        harness.parts(), destination=Destination(primary=harness.primary.broker, addresses=("a",))
    )
    pair = parts.assemble()
    await harness.nursery.start(pair.run)
    harness.primary.fail(Refuse(), Operation.SEND)

    accepted_by = await send_accepted_by(pair.broker, ORDERS, [message()])

    [diverted] = await harness.secondary.messages(QUEUE)
    assert accepted_by is AcceptedBy.BACKLOG
    assert envelope().unwrap(diverted).primary == fingerprint("a")


async def test_a_message_meant_for_another_primary_stays_untouched_and_is_told(harness):
    foreign = fingerprint("store:other")
    await put_for(harness, foreign)
    await put_for(harness, "")
    harness.nursery.start_soon(syphon_of(harness).run)

    await trio.sleep(200.0)

    assert len(await harness.secondary.messages(QUEUE)) == 1
    assert await harness.secondary.ids(QUEUE.dead_letter) == []
    assert harness.primary.sends() == 1
    told = harness.events.of(LeftUntouched)
    assert 3 <= len(told) <= 5  # once in a lock
    assert all(f"--adopt {foreign}" in event.reason for event in told)


async def test_an_adopted_primarys_messages_are_moved(harness):
    foreign = fingerprint("store:other")
    await put_for(harness, foreign)
    harness.nursery.start_soon(syphon_of(harness, adopted=frozenset({foreign})).run)

    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["m1"]


async def test_a_primary_that_moved_gets_what_was_meant_for_it(harness):
    await put_for(harness, fingerprint("store:east"))
    harness.nursery.start_soon(syphon_of(harness, addresses=("amqp://new",)).run)

    await trio.sleep(1.0)

    assert await harness.primary.ids() == ["m1"]


async def test_nothing_is_taken_before_the_primary_has_said_who_it_is(harness):
    await put_for(harness, fingerprint("store:east"))
    syphon = syphon_of(harness, says=Unavailable("down"))
    harness.nursery.start_soon(syphon.run)
    await trio.sleep(300.0)
    taken = harness.secondary.times(Operation.RECEIVE)
    syphon.destination.primary.says = EAST
    await trio.sleep(6.0)

    assert taken == []
    assert await harness.primary.ids() == ["m1"]


def syphon_of(harness, says=EAST, **options):
    syphon = harness.make_syphon()
    primary = Named(broker=harness.primary.broker, says=says)
    syphon.primary = primary
    syphon.destination = Destination(primary=primary, observer=harness.events, **options)
    return syphon


async def test_gateways_that_were_started_together_dont_ask_together(harness):
    primaries = [Named() for _ in range(20)]
    for seed, primary in enumerate(primaries):
        made = Destination(primary=primary, rng=random.Random(seed))
        harness.nursery.start_soon(made.run)
    asked = []
    for _ in range(int(1.3 * ASK_AGAIN)):
        before = sum(primary.asked for primary in primaries)
        await trio.sleep(1.0)
        asked.append(sum(primary.asked for primary in primaries) - before)

    assert sum(asked) == 40
    assert max(asked[1:]) < 5
