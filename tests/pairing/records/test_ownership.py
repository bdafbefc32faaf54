"""The note on a backlog that says whose it is."""

import json
import random

import attrs
import pytest

from gateway.domain import backlog
from gateway.domain.errors import NotAuthorized, NotSupported
from gateway.pairing.provision import provision
from gateway.pairing.records.ownership import Owner, note_of, owner_in, owners_of, record_owner
from gateway.store.local.memory import MemoryBroker
from tests.harness.clocks import VirtualClock

LABEL = "east"
FIRST = backlog.queue_name(LABEL, 0)
EAST = Owner(fingerprint="0" * 16, name="store:east")
OTHER = Owner(fingerprint="1" * 16, name="store:other")


class Noteless(MemoryBroker):
    """A namespace whose queues have no text of their own, as RabbitMQ's."""

    async def update_queue(self, entity, properties, *, if_version=None):
        raise NotSupported("no")


@pytest.fixture(params=[MemoryBroker, Noteless])
async def secondary(request):
    async with request.param(VirtualClock(), random.Random(0)) as broker:
        await provision(broker, LABEL, 2)
        yield broker


async def test_a_backlog_of_before_is_nobodys(secondary):
    assert await owners_of(secondary, LABEL) == []


async def test_a_backlog_remembers_whose_it_is(secondary):
    await record_owner(secondary, LABEL, EAST)
    await record_owner(secondary, LABEL, EAST)

    assert [owner.fingerprint for owner in await owners_of(secondary, LABEL)] == ["0" * 16]
    assert await owners_of(secondary, "west") == []


async def test_a_note_of_another_pair_can_be_seen(secondary):
    await record_owner(secondary, LABEL, OTHER)
    await record_owner(secondary, LABEL, EAST)

    assert "1" * 16 in [owner.fingerprint for owner in await owners_of(secondary, LABEL)]


async def test_a_primary_that_replaces_another_one_has_its_note(secondary):
    await record_owner(secondary, LABEL, OTHER)
    await record_owner(secondary, LABEL, EAST, instead_of=["1" * 16])

    assert [owner.fingerprint for owner in await owners_of(secondary, LABEL)] == ["0" * 16]


async def test_somebodys_text_stays():
    async with MemoryBroker(VirtualClock(), random.Random(0)) as broker:
        await provision(broker, LABEL, 1)
        info = await broker.inspect(FIRST)
        await broker.update_queue(FIRST, attrs.evolve(info.properties, user_metadata="mine"))
        await record_owner(broker, LABEL, EAST)

        assert (await broker.inspect(FIRST)).properties.user_metadata == "mine"


async def test_a_backlog_that_is_not_there_has_no_owner():
    async with MemoryBroker(VirtualClock(), random.Random(0)) as broker:
        assert await owners_of(broker, LABEL) == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "1",
        "[]",
        "[" * 100_000,
        "{}",
        '{"pairgate": 1}',
        '{"pairgate": {"primary": "x"}}',
    ],
)
def test_an_invalid_note_names_nobody(text):
    assert owner_in(text) is None


def test_a_note_can_be_read_again_and_is_short():
    assert owner_in(note_of(EAST)) == EAST
    assert len(note_of(attrs.evolve(EAST, name="x" * 9999))) < 300


async def test_a_name_that_is_too_long_is_cut() -> None:
    assert owner_in(note_of(attrs.evolve(EAST, name="x" * 201))).name == "x" * 200


def test_an_owner_is_told_by_name_and_fingerprint():
    assert str(EAST) == f"store:east (fingerprint {'0' * 16})"
    assert str(attrs.evolve(EAST, name="")) == f"another primary (fingerprint {'0' * 16})"


def test_a_note_may_have_no_name():
    note = json.dumps({"pairgate": {"primary": "0" * 16}})

    assert owner_in(note) == Owner(fingerprint="0" * 16)


async def test_a_queue_with_a_text_of_its_own_has_the_note():
    async with MemoryBroker(VirtualClock(), random.Random(0)) as broker:
        await provision(broker, LABEL, 1)
        await record_owner(broker, LABEL, EAST)

        assert (await broker.inspect(FIRST)).properties.user_metadata == note_of(EAST)


class Outdated(MemoryBroker):
    """A namespace that shows its first queue as it was before another process wrote its note."""

    async def inspect(self, entity):
        info = await super().inspect(entity)
        await record_owner(Plain(self), LABEL, OTHER)
        return info


@attrs.define
class Plain:
    """The same without the delay."""

    broker: MemoryBroker

    async def inspect(self, entity):
        return await MemoryBroker.inspect(self.broker, entity)

    async def update_queue(self, entity, properties, *, if_version=None):
        return await self.broker.update_queue(entity, properties, if_version=if_version)


async def test_the_note_of_a_process_that_was_faster_stays():
    async with Outdated(VirtualClock(), random.Random(0)) as broker:
        await provision(broker, LABEL, 1)
        await record_owner(broker, LABEL, EAST)
        [owner] = await owners_of(broker, LABEL)

        assert owner == OTHER


class Closed(MemoryBroker):
    """A namespace that tells nothing of its queues."""

    async def inspect(self, entity):
        raise NotAuthorized("no right")

    async def list_queues(self, prefix="", *, skip=0, top=100):
        raise NotAuthorized("no right")


async def test_a_backlog_that_may_not_be_looked_at_has_no_owner():
    async with Closed(VirtualClock(), random.Random(0)) as broker:
        assert await owners_of(broker, LABEL) == []
