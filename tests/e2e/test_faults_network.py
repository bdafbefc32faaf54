"""A pair meets each way in which a network fails, over real sockets."""

import attrs
import pytest
import trio

from gateway.domain.errors import Outcome
from gateway.domain.message import AcceptedBy
from tests.e2e.network import open_network
from tests.harness.chaos_proxy import (
    BlackHole,
    Hold,
    Link,
    Pass,
    Refuse,
    ResetAfter,
    ResetBefore,
    ResetDuring,
    Slow,
    Sometimes,
    SwallowResponse,
    Truncate,
)
from tests.harness.patience import PATIENCE

pytestmark = pytest.mark.slow

# Faults on the way to the primary: the namespace that accepts the message, and the number of its
# copies.
TO_THE_PRIMARY = {
    "refused": (Refuse(), AcceptedBy.BACKLOG, 1),
    "reset before the request": (ResetBefore(), AcceptedBy.BACKLOG, 1),
    "reset during the request": (ResetDuring(40), AcceptedBy.BACKLOG, 1),
    "reset after the answer": (ResetAfter(), AcceptedBy.PRIMARY, 1),
    "answer swallowed": (SwallowResponse(), AcceptedBy.BACKLOG, 2),
    "answer cut in its head": (Truncate(12), AcceptedBy.BACKLOG, 2),
    "nothing comes through": (BlackHole(), AcceptedBy.BACKLOG, 1),
    "held back, applied later": (Hold(), AcceptedBy.BACKLOG, 2),
    "slow": (Slow(size=256, delay=0.01), AcceptedBy.PRIMARY, 1),
    "slower than an attempt, applied later": (Slow(size=64, delay=0.6), AcceptedBy.BACKLOG, 2),
}


@pytest.mark.parametrize(
    ("fault", "accepted_by", "copies"), TO_THE_PRIMARY.values(), ids=TO_THE_PRIMARY
)
async def test_no_fault_before_the_primary_is_an_error(fault, accepted_by, copies):
    async with open_network() as network:
        network.primary.fault = fault

        with trio.fail_after(PATIENCE):
            told = await network.send("m1")
        network.primary.fault = Pass()
        await network.drain()
        verdict, found = await network.judge(spare_duplicates=copies - 1)

    assert told is accepted_by
    assert verdict.passed, verdict.findings
    assert found == copies


# Faults on the way to the secondary, while the primary refuses: the sender's outcome, and the legal
# number of copies. After an attempt without an answer the next attempt first asks for the peer's
# identity, so that an answer that is swallowed again leaves no copy.
TO_THE_BACKLOG = {
    "refused": (Refuse(), Outcome.NOT_SENT, {0}),
    "reset before the request": (ResetBefore(), Outcome.UNKNOWN, {0}),
    "answer swallowed": (SwallowResponse(), Outcome.UNKNOWN, {1}),
    "answer cut in its head": (Truncate(12), Outcome.UNKNOWN, {1}),
    "nothing comes through": (BlackHole(), Outcome.UNKNOWN, {0}),
    # Each of three queues once, and then, a second apart, again while there is time.
    "held back, applied later": (Hold(), Outcome.UNKNOWN, {1, 2, 3, 4, 5, 6}),
    "reset after the answer": (ResetAfter(), AcceptedBy.BACKLOG, {1}),
}


@pytest.mark.parametrize(("fault", "told", "copies"), TO_THE_BACKLOG.values(), ids=TO_THE_BACKLOG)
async def test_a_message_that_nobody_took_is_reported_honestly(fault, told, copies):
    async with open_network() as network:
        network.primary.fault = Refuse()
        network.secondary.fault = fault
        if fault == Refuse():  # on a new connection, where nothing can have been sent
            network.primary.reset_all()
            network.secondary.reset_all()
            await trio.sleep(0.1)

        with trio.fail_after(PATIENCE):
            answer = await network.send("m1")
        network.primary.fault = Pass()
        network.secondary.fault = Pass()
        await trio.sleep(0.2)  # the bytes that were held back arrive
        await network.drain()
        verdict, found = await network.judge(spare_duplicates=max(max(copies) - 1, 0))

    assert answer is told
    assert verdict.passed, verdict.findings
    assert found in copies


@pytest.mark.parametrize("fault", [Refuse(), SwallowResponse(), BlackHole(), Hold()], ids=repr)
async def test_a_fault_before_the_secondary_alone_is_not_noticed(fault):
    async with open_network() as network:
        network.secondary.fault = fault

        told = [await network.send(f"m{number}") for number in range(5)]
        network.secondary.fault = Pass()
        verdict, found = await network.judge(spare_duplicates=0)

    assert set(told) == {AcceptedBy.PRIMARY}
    assert verdict.passed, verdict.findings
    assert found == 5


@attrs.frozen
class ToSends(Pass):
    """`fault` for the answers to sends; probes are answered, so that the sends go on."""

    fault: Pass
    sends: set[Link] = attrs.field(factory=set, eq=False)

    async def up(self, link: Link, data: bytes) -> None:
        if data.startswith(b"POST"):
            self.sends.add(link)
        await link.send_up(data)

    async def down(self, link: Link, data: bytes) -> None:
        fault = self.fault if link in self.sends else Pass()
        self.sends.discard(link)
        await fault.down(link, data)


@pytest.mark.parametrize("fault", [SwallowResponse(), Truncate(12), BlackHole()], ids=repr)
async def test_a_transfer_without_an_answer_doubles_no_more_than_it_says(fault):
    """Each backoff of the entity stands for one send with an unknown outcome."""
    async with open_network() as network:
        network.primary.fault = Refuse()
        for number in range(10):
            await network.send(f"m{number}")
        network.primary.fault = ToSends(fault)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.drain)
            await network.wait_for_backoffs(3)
            network.primary.fault = Pass()
        verdict, _ = await network.judge(spare_duplicates=10 * network.backoffs)

    assert verdict.passed, verdict.findings
    assert verdict.counts["acked"] == 10
    assert verdict.counts["duplicated"] > 0


async def test_a_completion_without_an_answer_costs_no_duplicate():
    async with open_network() as network:
        network.primary.fault = Refuse()
        for number in range(20):
            await network.send(f"m{number}")
        network.primary.fault = Pass()
        network.secondary.fault = Sometimes(fault=SwallowResponse(), probability=0.3)

        await network.drain()
        network.secondary.fault = Pass()
        verdict, found = await network.judge(spare_duplicates=0)

    assert verdict.passed, verdict.findings
    assert found == 20


async def test_everything_at_once_loses_nothing():
    async with open_network() as network:
        faults = [
            SwallowResponse(),
            ResetAfter(),
            ResetDuring(100),
            Truncate(20),
            BlackHole(),
            Refuse(),
            Slow(size=128, delay=0.005, jitter=0.01),
        ]
        for number, fault in enumerate(faults * 2):
            network.primary.fault = fault
            network.secondary.fault = Sometimes(fault=ResetAfter(), probability=0.3)
            await network.send(f"a{number}")
            await network.send(f"b{number}")
        network.primary.fault = network.secondary.fault = Pass()
        await network.drain()
        verdict, _ = await network.judge(spare_duplicates=4 * len(faults))

    assert verdict.passed, verdict.findings
    assert verdict.counts["acked"] >= 20  # of 28: the secondary has its bad moments too
