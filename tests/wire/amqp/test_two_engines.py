"""Two engines at random: what one end does is what the other is told, to the end."""

import pytest

from tests.wire.amqp.two_engines import KINDS, OWN, Kind, conversation

NAMES = ["own", "own to Proton", "Proton to own"]


@pytest.mark.parametrize("first", range(0, 24, 6))
@pytest.mark.parametrize("kinds", KINDS, ids=NAMES)
def test_both_ends_tell_the_same_story(kinds: tuple[Kind, Kind], first: int) -> None:
    for seed in range(first, first + 6):
        talk = conversation(seed, *kinds)
        talk.run(300)

        assert all(end.closed for end in talk.ends)


def test_a_seed_is_a_conversation() -> None:
    said = [conversation(1, OWN, OWN) for _ in range(2)]
    for each in said:
        each.run(100)

    assert said[0].said == said[1].said != []
