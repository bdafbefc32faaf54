"""The status in one line: the same text until something changes."""

import attrs

from gateway.commands.status_view import summary
from tests.wire.pairgate.status import NOW, OUTAGE, WELL


def test_without_trouble_and_without_a_pair_all_is_well() -> None:
    assert summary(WELL) == "all is well"


def test_an_outage_is_told_without_ages() -> None:
    assert summary(OUTAGE) == (
        "needs attention; east can't be reached; entities secondary: 1; dead letters: 2;"
        " backlog: 5, moving; drill: hang"
    )
    later = NOW.replace(hour=13)
    assert OUTAGE.pair is not None
    syphon = attrs.evolve(OUTAGE.pair.syphon, last_moved=later)
    moves = attrs.evolve(OUTAGE, at=later, pair=attrs.evolve(OUTAGE.pair, syphon=syphon))
    assert summary(moves) == summary(OUTAGE)
