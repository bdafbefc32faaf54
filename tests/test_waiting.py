"""A command that takes its time says so on a terminal, and nowhere else."""

import io
import threading

from rich.console import Console

from gateway.commands.terminal import waiting

LIMIT = 30.0  # seconds


class Screen(io.StringIO):
    """A terminal; `shown` is set once the text is on it."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "copying" in text:
            self.shown.set()
        return super().write(text)


def test_a_long_step_is_shown_until_it_ends() -> None:
    screen = Screen()
    with waiting("copying", console=Console(file=screen, force_terminal=True), after=0.0):
        assert screen.shown.wait(LIMIT)


def test_a_step_that_ends_soon_is_not_shown() -> None:
    screen = Screen()
    with waiting("copying", console=Console(file=screen, force_terminal=True), after=LIMIT):
        pass

    assert not screen.shown.is_set()


def test_without_a_terminal_or_with_json_nothing_is_shown() -> None:
    screen = Screen()
    console = Console(file=screen, force_terminal=True)
    with waiting("copying", after=0.0), waiting("copying", shown=False, console=console, after=0.0):
        pass

    assert screen.getvalue() == ""
