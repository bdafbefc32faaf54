"""Sends of several clients share a call of the pair; each has its own verdict."""

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.capabilities import BoundsSends, EnlistsSchedules, SendsMany, Transacts
from gateway.deadlines import client_gives
from gateway.domain.errors import BrokerError, Outcome, OutcomeUnknown, QuotaExceeded, Unavailable
from gateway.domain.message import AcceptedBy
from gateway.offering import offered, required
from gateway.pairing.gathering import MOST_BYTES, MOST_SENDS, SMALL
from gateway.pairing.options import OnUnknown
from tests.harness.faults import Hang, LoseAnswer, Refuse
from tests.harness.retained import entries
from tests.pairing.gathering import SEND, Alone, Clients, OneByOne, clients
from tests.pairing.harness import BILLS, ORDERS, Slow, message, refuse, virtual_time

pytestmark = virtual_time


async def test_a_send_goes_at_once_if_no_other_is_under_way(harness):
    made = await clients(harness)

    await made.send("1")
    await made.send("2")

    assert made.primary.calls == [1, 1]


async def test_a_send_that_is_over_leaves_nothing(harness):
    made = await clients(harness)

    def kept():
        return entries(made.broker) - entries(made.broker.pair)

    before = kept()
    await made.broker.send(ORDERS, [message("1")])
    await made.begin()
    await made.together("2", "3")
    await trio.sleep(2.0)

    assert sorted(await harness.primary.ids()) == ["1", "2", "3", "first"]
    assert kept() == before


@pytest.mark.parametrize("capability", [BoundsSends, EnlistsSchedules, SendsMany, Transacts])
async def test_a_pair_that_gathers_offers_what_the_pair_does(harness, capability):
    made = await clients(harness, harness.primary.store)

    assert offered(made.broker.pair, capability) is not None
    assert offered(made.broker, capability) is not None


async def test_sends_that_arrive_together_share_a_call(harness):
    made = await clients(harness)
    await made.begin()

    await made.together("1", "2", "3")

    assert made.primary.calls == [1, 3]
    assert made.verdicts == dict.fromkeys(["1", "2", "3"], AcceptedBy.PRIMARY)
    assert sorted(await harness.primary.ids()) == ["1", "2", "3", "first"]


async def test_no_send_waits_for_the_answer_to_another(harness):
    made = await clients(harness)
    await made.begin()

    await made.together("1", "2")

    assert "first" not in made.verdicts


async def test_each_entity_has_its_own_calls(harness):
    made = await clients(harness)
    await made.begin()
    harness.primary.fail(Slow(1.0), SEND, entity=BILLS, times=1)
    harness.nursery.start_soon(partial(made.send, "bill", entity=BILLS))
    await wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.together, "1", "2")
        nursery.start_soon(partial(made.together, "3", "4", entity=BILLS))

    assert made.primary.calls == [1, 1, 2, 2]
    assert sorted(await harness.primary.ids(BILLS)) == ["3", "4", "bill"]


async def test_a_refusal_is_for_the_refused_send_alone(harness):
    made = await clients(harness)
    await made.begin()
    harness.primary.fail(refuse(QuotaExceeded, "full"), SEND, times=1)

    await made.together("1", "2", "3")

    kinds = [type(verdict) for verdict in made.verdicts.values()]
    assert sorted(kind.__name__ for kind in kinds) == ["AcceptedBy", "AcceptedBy", "QuotaExceeded"]


async def test_sends_are_told_who_accepted_them(harness):
    made = await clients(harness)
    await made.begin()
    harness.primary.fail(Refuse(), SEND)

    await made.together("1", "2")

    assert made.verdicts == dict.fromkeys(["1", "2"], AcceptedBy.BACKLOG)


async def test_an_unknown_outcome_is_unknown_for_the_whole_call(harness):
    made = await clients(harness, on_unknown=OnUnknown.RAISE)
    await made.begin()
    harness.primary.fail(LoseAnswer(), SEND)

    await made.together("1", "2")

    assert [verdict.outcome for verdict in made.verdicts.values()] == [Outcome.UNKNOWN] * 2
    assert len({id(verdict) for verdict in made.verdicts.values()}) == 2


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        (bytes(SMALL + 1), [1] * 4),
        (bytes(SMALL), [1, 3]),
    ],
)
async def test_a_large_send_goes_alone(harness, body, calls):
    made = await clients(harness)
    await made.begin()

    await made.together("1", "2", "3", body=body)

    assert made.primary.calls == calls


async def test_a_call_has_a_limit_of_bytes(harness):
    made = await clients(harness)
    await made.begin()

    await made.together(*map(str, range(MOST_BYTES // SMALL + 1)), body=bytes(SMALL))

    assert sorted(made.primary.calls) == [1, 1, MOST_BYTES // SMALL]


async def test_a_call_has_a_limit_of_sends(harness):
    made = await clients(harness)
    await made.begin()

    await made.together(*map(str, range(MOST_SENDS + 2)))

    assert sorted(made.primary.calls) == [1, 2, MOST_SENDS]


async def test_a_send_with_a_deadline_of_its_own_goes_alone(harness):
    made = await clients(harness)
    await made.begin()

    async def hurried() -> None:
        with trio.fail_after(10.0):
            await made.send("hurried")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.together, "1", "2")
        nursery.start_soon(hurried)

    assert sorted(made.primary.calls) == [1, 1, 2]


async def test_a_send_whose_client_gives_its_time_goes_alone(harness):
    made = await clients(harness)
    await made.begin()

    async def patient() -> None:
        with client_gives(100.0):
            await made.send("patient")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.together, "1", "2")
        nursery.start_soon(patient)

    assert sorted(made.primary.calls) == [1, 1, 2]


@pytest.mark.parametrize(
    ("kind", "together", "calls"),
    [(OneByOne, True, [1, 2]), (OneByOne, False, [1, 1, 1]), (Alone, False, [1, 1, 1])],
)
async def test_without_a_pipeline_sends_share_a_request_or_go_alone(harness, kind, together, calls):
    made = await clients(harness, kind(harness.primary.broker, together))
    await made.begin()

    await made.together("1", "2")

    assert made.primary.calls == calls
    assert made.verdicts == dict.fromkeys(["1", "2"], AcceptedBy.PRIMARY)


async def _one_leaves(made: Clients, *, before_it_is_sent: bool) -> AcceptedBy | BrokerError:
    """Cancel the leader of two sends that share a call; return the verdict of the other one."""
    entered: list[str] = []
    scopes = {name: trio.CancelScope() for name in ("1", "2")}

    async def client(name: str) -> None:
        entered.append(name)
        if before_it_is_sent and name != entered[0]:
            scopes[entered[0]].cancel()
        with scopes[name]:
            await made.send(name)

    async with trio.open_nursery() as nursery:
        for name in scopes:
            nursery.start_soon(client, name)
        await wait_all_tasks_blocked()
        scopes[entered[0]].cancel()
    return made.verdicts[entered[1]]


async def test_if_the_leader_is_cancelled_the_outcome_is_unknown_for_the_others(harness):
    made = await clients(harness)
    await made.begin()
    harness.primary.fail(Hang(), SEND)

    found = await _one_leaves(made, before_it_is_sent=False)

    assert isinstance(found, OutcomeUnknown)


async def test_if_the_leader_is_cancelled_at_once_nothing_was_sent(harness):
    made = await clients(harness)
    await made.begin()

    found = await _one_leaves(made, before_it_is_sent=True)

    assert isinstance(found, Unavailable)
    assert found.outcome is Outcome.NOT_SENT
    assert await harness.primary.ids() == ["first"]


async def test_a_send_that_is_cancelled_takes_nothing_from_the_others(harness):
    made = await clients(harness)
    await made.begin()
    harness.primary.fail(Slow(1.0), SEND, times=2)
    entered: list[str] = []
    scopes = {name: trio.CancelScope() for name in ("1", "2")}

    async def client(name: str) -> None:
        entered.append(name)
        with scopes[name]:
            await made.send(name)

    async with trio.open_nursery() as nursery:
        for name in scopes:
            nursery.start_soon(client, name)
        await wait_all_tasks_blocked()
        scopes[entered[1]].cancel()

    assert made.verdicts == dict.fromkeys(["first", entered[0]], AcceptedBy.PRIMARY)


async def test_sends_in_order_keep_their_call(harness):
    made = await clients(harness)
    await made.begin()

    found = await required(made.broker, SendsMany).send_many(
        ORDERS, [[message("1")], [message("2")]]
    )

    assert found == [None, None]
    assert made.primary.calls == [1, 2]


async def test_a_call_has_64_sends_of_64_kibibytes_and_four_times_as_many_bytes():
    assert (MOST_SENDS, SMALL, MOST_BYTES) == (64, 65536, 4 * 65536)
