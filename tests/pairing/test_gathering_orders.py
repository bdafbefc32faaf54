"""Sends share calls of a pair however they meet."""

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.domain.message import AcceptedBy
from tests.harness.faults import Operation
from tests.pairing.gathering import clients
from tests.pairing.harness import ORDERS, Harness, Slow


@given(random=st.random_module(), pauses=st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_each_message_arrives_once(random: object, pauses: list[int]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            harness = Harness(nursery=nursery)
            await harness.open()
            made = await clients(harness)
            harness.primary.fail(Slow(1.0), Operation.SEND)
            async with trio.open_nursery() as senders:
                for number, pause in enumerate(pauses):
                    senders.start_soon(made.send, str(number))
                    await trio.sleep(pause / 2)
            names = [str(number) for number in range(len(pauses))]
            assert made.verdicts == dict.fromkeys(names, AcceptedBy.PRIMARY)
            assert sorted(map(str, await harness.primary.ids(ORDERS))) == sorted(names)
            assert sum(made.primary.calls) == len(pauses)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
