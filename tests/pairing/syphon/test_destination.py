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
from gateway.offering import offered
from gateway.pairing.syphon.destination import ASK_AGAIN, ASK_LIMIT, Destination
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


# Questions to the primary


@attrs.define(eq=False)
class Hanging(Named):
    """Notes when it is asked, and doesn't answer."""

    times: list[float] = attrs.field(factory=list)

    async def identity(self) -> Identity:
        self.times.append(trio.current_time())
        await trio.sleep_forever()
        raise AssertionError


async def test_a_primary_that_fails_is_asked_after_twice_as_long_up_to_five_seconds(harness):
    primary = Named(says=Unavailable("down"))
    made = Destination(primary=primary)
    harness.nursery.start_soon(made.wait_known)
    asked = []
    for seconds in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        await trio.sleep(seconds)
        asked.append(primary.asked)

    assert asked == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not made.has_answered


async def test_a_primary_without_an_answer_is_asked_again_after_ten_seconds(harness):
    primary = Hanging()
    began = trio.current_time()
    harness.nursery.start_soon(Destination(primary=primary).wait_known)
    await trio.sleep(11.0)

    assert [each - began for each in primary.times] == pytest.approx([0.0, ASK_LIMIT + 0.2])


async def test_a_destination_that_is_known_waits_for_nothing(harness):
    made = destination(takes_all=True)
    await made.wait_known()

    assert made.primary.asked == 0


async def test_a_refresh_asks_once_a_minute_and_ignores_errors(harness):
    made = destination()
    asked = []
    for seconds in (0.0, 59.0, 1.0):
        await trio.sleep(seconds)
        await made.refresh()
        asked.append(made.primary.asked)
    made.primary.says = Unavailable("down")
    await trio.sleep(ASK_AGAIN)
    await made.refresh()

    assert asked == [1, 1, 2]
    assert (made.primary.asked, made.identity) == (3, EAST)


async def test_a_primary_that_reports_none_is_not_asked_again(harness):
    made = destination(NotSupported("no"))
    harness.nursery.start_soon(made.run)
    await trio.sleep(10 * ASK_AGAIN)
    await made.refresh()

    assert (made.primary.asked, made.has_answered) == (1, True)


async def test_a_refresh_while_the_first_answer_is_awaited_asks_nothing(harness):
    made = Destination(primary=Hanging())
    harness.nursery.start_soon(made.wait_known)
    waited = []
    for _ in range(10):
        await trio.sleep(1.0)
        began = trio.current_time()
        await made.refresh()
        waited.append(trio.current_time() - began)

    assert len(made.primary.times) == 1
    assert set(waited) == {0.0}


async def test_a_kind_without_identities_is_known_by_its_first_question(harness):
    made = Destination(primary=harness.primary.broker, addresses=("a",))
    unknown = offered(harness.primary.broker, Identifies) is None
    before = made.is_known
    await made.ask()

    assert (unknown, before, made.is_known, made.has_answered) == (True, False, True, True)


# Identities and fingerprints


async def test_without_an_identity_and_an_address_it_has_no_fingerprint(harness):
    made = destination(MEMORY)
    await made.ask()

    assert (made.fingerprint, made.accepted) == ("", frozenset())
    assert made.accepts("")


async def test_each_new_identity_is_a_change_and_the_same_one_is_none(harness):
    made = destination()
    versions = []
    for says in (EAST, EAST, OTHER):
        made.primary.says = says
        await made.ask()
        versions.append(made.changes.version)

    assert versions == [1, 1, 2]
    assert made.accepts(fingerprint("store:other"))
    assert not made.accepts(fingerprint("store:east"))


@pytest.mark.parametrize("before", [None, MEMORY])
async def test_a_first_lasting_identity_replaces_none(harness, before):
    made = destination(before or EAST, observer=harness.events)
    await made.ask()
    made.primary.says = OTHER
    if before is MEMORY:
        await made.ask()

    assert harness.events.of(PrimaryReplaced) == []


async def test_a_replaced_primary_is_no_fault_without_an_observer(harness):
    made = destination()
    await made.ask()
    made.primary.says = OTHER
    await made.ask()

    assert made.identity == OTHER


async def test_of_two_earlier_identities_the_first_counts(harness):
    made = destination()
    made.restore(None)
    nothing = (made.formerly, made.identity)
    made.restore(EAST)
    made.restore(OTHER)

    assert nothing == ("", None)
    assert (made.formerly, made.identity) == (fingerprint("store:east"), EAST)
    assert made.accepts(fingerprint("store:east"))


async def test_an_earlier_identity_is_forgotten_by_what_was_accepted(harness):
    made = destination(addresses=("a",))
    before = made.accepted
    made.restore(EAST)

    assert before == {fingerprint("a")}
    assert made.accepted == {fingerprint("a"), fingerprint("store:east")}
