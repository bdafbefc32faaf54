"""All fuzzers, by name."""

from collections.abc import Callable, Mapping
from typing import Final

from hypothesis import given, seed, settings

from tests.frontends.amqp import fuzz as conversations
from tests.fuzz.by_input import ByInput
from tests.fuzz.connections import CONNECTIONS
from tests.fuzz.documents import DOCUMENTS
from tests.fuzz.relays import RELAYS
from tests.fuzz.served import BROKERS
from tests.security import envelope_fuzz as envelopes
from tests.security import fuzz as operations
from tests.wire.amqp import fuzz as engines

Fuzz = Callable[[int, Callable[[int], bool]], int]
"""Tries inputs of a seed while `go_on(n)`, and returns how many there were; a bug raises."""


def fuzz_operations(number: int, go_on: Callable[[int], bool]) -> int:
    """Conversations of 20 to 40 requests of any front end."""
    done = 0
    while go_on(done):

        @seed(number + done)
        @settings(operations.SETTINGS, max_examples=20)
        @given(operations.conversations)
        def search(asked: list[operations.Call]) -> None:
            nonlocal done
            operations.run(asked)
            done += 1

        search()
    return done


TARGETS: Final[Mapping[str, ByInput | Fuzz]] = {
    **{target.name: target for target in (*CONNECTIONS, *RELAYS, *BROKERS, *DOCUMENTS)},
    "amqp-engines": engines.fuzz,
    "amqp-conversations": conversations.run,
    "operations": fuzz_operations,
    "envelopes": envelopes.fuzz,
}
