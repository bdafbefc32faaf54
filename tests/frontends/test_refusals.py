"""Refused credentials are told without a flood, and counted."""

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.access import Refusal
from gateway.domain.events.access import CredentialsRefused
from gateway.domain.events.gateway import Event
from gateway.frontends.refusals import LONGEST_NAME, MOST, WINDOW, Refusals
from gateway.net.visits import Visits


class Heard(list[Event]):
    def report(self, event: Event) -> None:
        self.append(event)

    @property
    def refusals(self) -> list[CredentialsRefused]:
        return [event for event in self if isinstance(event, CredentialsRefused)]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def refusals(heard: Heard, nursery: trio.Nursery) -> Refusals:
    refusals = Refusals(heard)
    await nursery.start(refusals.run)
    return refusals


async def test_the_first_refusal_is_told_at_once_with_the_clients_address(
    refusals: Refusals, heard: Heard
) -> None:
    with Visits(10.0).begin("somebody", "[2001:db8::7]:4711"):
        refusals.at("amqp")("sender", Refusal.WRONG_KEY)

    [event] = heard.refusals
    assert (event.protocol, event.peer, event.name) == ("amqp", "2001:db8::7", "sender")
    assert (event.reason, event.times) == ("wrong-key", 1)


async def test_repeated_refusals_are_one_event_with_their_number(
    refusals: Refusals, heard: Heard, autojump_clock: MockClock
) -> None:
    for _ in range(1000):
        refusals.at("amqp")("sender", Refusal.WRONG_KEY)
    assert [event.times for event in heard.refusals] == [1]

    await trio.sleep(WINDOW + 1)
    assert [event.times for event in heard.refusals] == [1, 999]

    await trio.sleep(10 * WINDOW)
    refusals.at("amqp")("sender", Refusal.WRONG_KEY)
    assert [event.times for event in heard.refusals] == [1, 999, 1]
    assert refusals.counts == {("amqp", "wrong-key"): 1001}


async def test_counted_refusals_are_told_at_the_end_of_the_process(heard: Heard) -> None:
    async with trio.open_nursery() as nursery:
        refusals = Refusals(heard)
        await nursery.start(refusals.run)
        for _ in range(3):
            refusals.at("admin")("", Refusal.MISSING)
        nursery.cancel_scope.cancel()

    assert [event.times for event in heard.refusals] == [1, 2]


async def test_guessed_names_neither_flood_the_log_nor_take_memory(
    refusals: Refusals, heard: Heard, autojump_clock: MockClock
) -> None:
    guesses = 20 * MOST
    for number in range(guesses):
        refusals.at("amqp")(f"{number:04}{'-' * 100}", Refusal.UNKNOWN_NAME)
    await trio.sleep(WINDOW + 1)

    *told, rest = heard.refusals
    assert len(told) == MOST
    assert all(len(event.name) == LONGEST_NAME for event in told)
    assert (rest.peer, rest.name, rest.times) == ("", "", guesses - MOST)
    assert refusals.counts == {("amqp", "unknown-name"): guesses}
