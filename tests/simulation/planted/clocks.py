"""Planted bugs in what makes dates of wall clocks, and lives of dates."""

from collections.abc import Sequence
from datetime import timedelta
from math import inf
from typing import Any, Final

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.message import Message
from gateway.moments import Moments
from gateway.pairing.sending import Sending
from gateway.pairing.syphon import mover
from tests.simulation.planted.patch import Function, Mutant


def believe_a_step_at_once(right: Function) -> Function:
    def now(self: Moments) -> Now:
        moment: Now = right(self)
        return attrs.evolve(moment, untrusted_until=-inf, before=None)

    return now


def compare_no_clocks(right: Function) -> Function:
    def remaining(unwrapped: Any, now: Now, stay: Any) -> timedelta | None:
        left: timedelta | None = right(unwrapped, attrs.evolve(now, before=None), None)
        return left

    return remaining


def wait_for_nothing(right: Function) -> Function:
    def handed_over(self: Sending) -> Sequence[Message]:
        return self.messages

    return handed_over


MUTANTS: Final = (
    Mutant("a step is believed at once", Moments, "now", believe_a_step_at_once),
    Mutant("the syphon trusts a step of its clock", mover, "remaining", compare_no_clocks),
    Mutant(
        "time to live stands still while a send waits", Sending, "handed_over", wait_for_nothing
    ),
)
