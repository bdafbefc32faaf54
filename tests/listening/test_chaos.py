"""All that can go wrong, at once."""

import random
from collections import Counter

import pytest
import trio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.listening.errors import EndpointDown
from tests.harness.faults import Hang, LoseAnswer, Refuse
from tests.listening.harness import LONGEST_TEST, Harness, until


# A smaller example says no more, and each takes its time.
@pytest.mark.slow
@settings(max_examples=40, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.booleans(), st.random_module())
def test_nothing_is_lost_whatever_fails_and_whoever_is_cancelled(seed, polls, module):
    """Faults, handlers that fail or hang, listeners that are cancelled or drained at any time."""

    async def main() -> None:
        rng = random.Random(seed)
        with trio.fail_after(LONGEST_TEST):
            async with trio.open_nursery() as nursery:
                harness = Harness(nursery=nursery)
                await harness.create()
                faulty = await harness.make_faulty()
                if polls:
                    harness.poll()
                faults = [Refuse(), LoseAnswer(), Hang(20.0), None, None, None, None]
                faulty.fault = lambda operation, _: rng.choice(faults)
                handled = Counter()

                async def handle(item):
                    await trio.sleep(rng.choice([0.0, 0.0, 1.0, 50.0]))
                    if rng.random() < 0.1:
                        raise ValueError
                    if rng.random() < 0.02:
                        raise EndpointDown
                    handled[item.message.message_id] += 1

                sent = [str(number) for number in range(60)]
                await harness.send(*sent)
                for _ in range(4):
                    listener = harness.listener(handle, options={"poison_threshold": None})
                    with trio.move_on_after(rng.uniform(0.0, 60.0)):
                        async with trio.open_nursery() as inner:
                            await inner.start(listener.run)
                            if rng.random() < 0.5:
                                await trio.sleep(rng.uniform(0.0, 30.0))
                                await listener.drain()
                gone = set(sent) - set(await harness.waiting())
                assert gone <= set(handled)
                faulty.fault = lambda operation, _: None
                await harness.listen(handle, options={"poison_threshold": None})
                await until(lambda: set(handled) == set(sent), seconds=8 * 3600.0)
                nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
