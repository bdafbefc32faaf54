"""Without an extension that knows other processes, a gateway is a single one."""

import random
from datetime import timedelta

import pytest

from gateway.app.assembly import others
from gateway.app.assembly.others import HeldParts, Others, ProcessPlace, others_of
from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.domain.entity import EntityPath
from gateway.domain.errors import LockLost
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.leases import Leases
from gateway.pairing.additions import PairPeers
from gateway.store.local.memory import MemoryBroker
from tests.config.texts import ONE, config
from tests.frontends.rest_client import wall_clock

ORDERS = EntityPath("orders")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "parts", lambda point: ())


@pytest.fixture
def own() -> Leases:
    return Leases(MemoryBroker(wall_clock, random.Random(1)), wall_clock)


def test_a_single_process_knows_no_other_one(alone: None) -> None:
    found = others_of(ProcessPlace(config=config(ONE), runtime=Runtime()))

    assert (found.peers(), found.new_token(), found.services()) == (PairPeers(), None, ())
    assert found.greeting() == {}


def test_several_processes_that_can_not_settle_for_each_other_are_refused(alone: None) -> None:
    """A client's lock, of any of them, would be lost at all others."""
    place = ProcessPlace(config=config(f"workers = 2\n{ONE}"), runtime=Runtime())

    with pytest.raises(Failure, match="workers: the processes of this installation") as failed:
        others_of(place)
    assert failed.value.code is ExitCode.WRONG


def test_without_others_clients_see_what_this_process_holds(own: Leases) -> None:
    held = LeasedVisibility(MemoryBroker(wall_clock, random.Random(1)), own, wall_clock)
    held_parts = HeldParts(own=own, leases=own, visibility=held)

    assert Others().leases(own) is own
    assert Others().visibility(held) is held
    assert Others().answering(held_parts) is None


async def test_a_single_process_hides_nothing_by_a_text_that_is_no_token(own: Leases) -> None:
    with pytest.raises(LockLost):
        await own.hide(ORDERS, "a token", timedelta(seconds=30))
