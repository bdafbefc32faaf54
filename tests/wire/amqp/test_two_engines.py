"""Two engines at random: each action of one end becomes an event of the other, to the end."""

import pytest

from tests.wire.amqp.broken_streams import break_up, hear, say
from tests.wire.amqp.fuzz import fuzz
from tests.wire.amqp.two_engines import KINDS, OWN, Kind, Rng, conversation

NAMES = ["own", "own to Proton", "Proton to own"]


@pytest.mark.parametrize("first", range(0, 24, 6))
@pytest.mark.parametrize("kinds", KINDS, ids=NAMES)
def test_both_ends_tell_the_same_story(kinds: tuple[Kind, Kind], first: int) -> None:
    for seed in range(first, first + 6):
        talk = conversation(seed, *kinds)
        talk.run(300)

        assert all(end.closed for end in talk.ends)


@pytest.mark.parametrize("by_client", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_broken_stream_ends_in_an_error_with_a_condition(seed: int, *, by_client: bool) -> None:
    pieces, rng = say(seed, OWN, by_client=by_client), Rng(f"broken {seed}")
    early = [hear(seed, OWN, break_up(pieces, rng), rng, by_client=by_client) for _ in range(30)]

    assert any(early)


def test_a_seed_is_a_conversation() -> None:
    said = [conversation(1, OWN, OWN) for _ in range(2)]
    for each in said:
        each.run(100)

    assert said[0].said == said[1].said != []


def test_the_fuzzer_runs_as_long_as_it_is_told() -> None:
    assert fuzz(0, lambda done: done < 3) == 3
