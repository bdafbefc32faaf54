"""Planted bugs in what is known of an entity's health: silence, late answers, and flapping."""

from math import inf
from typing import Any, Final

from gateway.domain.entity import EntityPath
from gateway.domain.failover import State
from gateway.domain.health.flapping import CALM, Damping
from gateway.pairing.entity_record import Attempt
from gateway.pairing.options import PairOptions
from gateway.pairing.states import EntityStates
from tests.simulation.planted.patch import Function, Mutant


def only_sends_bring_back(right: Function) -> Function:
    def probed(self: EntityStates, entity: EntityPath, *arguments: Any) -> None:
        if self.state_of(entity) is not State.SUSPECT:
            right(self, entity, *arguments)

    return probed


def only_sends_fail_over(right: Function) -> Function:
    def probe_failed(self: EntityStates, probe: Attempt, *arguments: Any, **named: Any) -> None:
        if self.state_of(probe.entity) is not State.SUSPECT:
            right(self, probe, *arguments, **named)

    return probe_failed


def each_finds_out_by_itself(right: Function) -> Function:
    def doubt(self: EntityStates, entity: EntityPath) -> None:
        return

    return doubt


def nothing_is_late(right: Function) -> Any:
    return property(lambda self: inf)


def each_return_is_the_first(right: Function) -> Function:
    def after_failure(self: Damping, now: float) -> Damping:
        return CALM

    return after_failure


MUTANTS: Final = (
    Mutant(
        "probes don't bring a suspect entity back", EntityStates, "probed", only_sends_bring_back
    ),
    Mutant("a silent suspect stays suspect", EntityStates, "_probe_failed", only_sends_fail_over),
    Mutant("a lost namespace isn't shared", EntityStates, "suspect", each_finds_out_by_itself),
    Mutant("late answers never count", PairOptions, "slowest_success", nothing_is_late),
    Mutant("flapping isn't damped", Damping, "after_failure", each_return_is_the_first),
)
