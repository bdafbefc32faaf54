"""
A family of clients: the suites of one language or vendor. Each family is a file in `families`, and
`families/__init__.py` lists them.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import attrs

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"

Outcome = Literal["passed", "failed", "skipped"]


@attrs.frozen
class Result:
    """The outcome of one test, and what the test said if it failed or was skipped."""

    outcome: Outcome
    reason: str = ""


@attrs.frozen(kw_only=True)
class Wishes:
    """Options of the command line; a suite may ignore them."""

    workers: int
    words: str  # run only tests whose names contain this; empty: all


@attrs.frozen(kw_only=True)
class Suite:
    """Programs or tests that exercise one client."""

    name: str  # as in `SUITES=` and `expected.toml`
    client: str  # the package
    version: str  # the one that is run
    what: str = ""  # for the table of compatibility
    run: Callable[[Wishes], Mapping[str, Result]]  # starts its own gateway; results by test


@attrs.frozen(kw_only=True)
class Family:
    name: str  # as in `SUITES=`
    language: str
    suites: tuple[Suite, ...]
    missing: Callable[[], str]  # what this machine lacks to run it; empty: nothing
