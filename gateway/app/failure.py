"""How a command ends that can't do its work: a text for people, and the exit code."""

import enum


class ExitCode(enum.IntEnum):
    DONE = 0
    FAILED = 1
    WRONG = 2  # usage or configuration
    PARTLY = 3  # some of it; the same command may do the rest later
    TEMPORARY = 75  # the same command may work later


class Failure(Exception):
    """An expected end; the text says what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
