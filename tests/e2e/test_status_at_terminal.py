"""The watch of a status at terminals of two sizes: what matters is on the screen, whole."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.frontends.admin import page_states
from tests.frontends.admin.page_site import open_site
from tests.harness.terminal import at_terminal

pytestmark = pytest.mark.slow

CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME: Final = "\x1b[H"
NAMES: Final = tuple(f"queue-{number:02}" for number in range(64))


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_the_outage_of_64_entities_fits_on_a_screen(
    tmp_path: Path, columns: int, rows: int
) -> None:
    with open_site(lambda: page_states.failed_over(*NAMES)) as site:
        arguments = ("status", "--watch", "--url", site.url.rstrip("/"))
        with at_terminal(tmp_path, *arguments, columns=columns, rows=rows) as terminal:
            terminal.sees("backlog")
            terminal.sees(HOME)  # the next second's
            screen = CONTROL.sub("", HOME + terminal.sees(HOME)).splitlines()
            terminal.interrupts()
            code, _ = terminal.ends()
    text = " ".join(" ".join(screen).split())

    assert code == 0
    assert len(screen) <= rows
    assert all(len(line) <= columns for line in screen)
    assert screen[0].rstrip().endswith("needs attention")
    assert screen[1].startswith("backlog  11412 messages wait")
    assert screen[2].startswith("way home waiting")
    assert "check whether the namespace runs, and check its address, DNS and firewalls" in text
    assert "64 entities (queue-00, queue-01, queue-02 and 61 more)" in text
    assert ("more lines: `pairgate status` shows all" in text) == (rows == 24)
