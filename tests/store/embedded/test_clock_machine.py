"""A store keeps its promises about lives whatever its machine's clock does; bugs are found."""

from pathlib import Path

import pytest
from hypothesis import Phase

from tests.brokers.machine_runs import UNTIL_FOUND, run
from tests.harness.planted import PlantedBug, bugs_below
from tests.store.embedded.clock_machine import ClockMachine

PLANTED = Path(__file__).parents[1] / "planted" / "clocks"


def machine_in(folder: Path) -> type[ClockMachine]:
    class Here(ClockMachine):
        pass

    Here.folder = folder
    return Here


@pytest.mark.slow
def test_messages_live_as_long_as_their_senders_said(folder: Path) -> None:
    run(machine_in(folder), 100)


def finds(folder: Path) -> bool:
    try:
        run(machine_in(folder), UNTIL_FOUND, phases=(Phase.generate,))
    except AssertionError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_below(PLANTED), ids=str)
def test_the_machine_finds(bug: PlantedBug, folder: Path) -> None:
    assert bug.call(finds, folder)
