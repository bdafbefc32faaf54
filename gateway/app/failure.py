"""The expected failure of a command: a text for people, and an exit code."""

import enum


class ExitCode(enum.IntEnum):
    DONE = 0
    FAILED = 1
    WRONG = 2  # of usage or configuration
    PARTLY = 3  # some of the work was done; the same command may do the rest later
    TEMPORARY = 75  # the same command may succeed later


class Failure(Exception):
    """An expected failure of a command; the text names the remedy."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code


class Unanswered(Failure):
    """
    An order was handed over and has no answer, so that nobody knows whether it is in effect, or in
    part.
    """
