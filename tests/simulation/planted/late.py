"""Planted bugs that lose nothing: what must come is late, and what is done comes again."""

from itertools import count
from typing import Any, Final

import attrs
import trio

from gateway.domain import backlog
from gateway.domain.backlog import is_backlog
from gateway.domain.backoff import Backoff
from gateway.domain.clocks.times import Now
from gateway.domain.entity import EntityPath
from gateway.domain.message import Abandon, Complete, Settlement
from gateway.engine.queue import Queue
from gateway.pairing import primary as primary_sender
from gateway.pairing.prober import Prober
from gateway.pairing.syphon.backoff import EntityBackoffs
from gateway.pairing.syphon.syphon import Syphon
from tests.simulation.planted.patch import Function, Mutant
from tests.simulation.scenario import ENTITIES

_FOR_LONG: Final = Backoff(first=1000.0, cap=1000.0)


def give_some_back_instead(right: Function) -> Function:
    numbers = count()

    def settle(self: Queue, token: str | None, settlement: Settlement, now: Now) -> None:
        primary = isinstance(settlement, Complete) and not is_backlog(self.path)
        forgotten = primary and next(numbers) % 10 == 9
        right(self, token, Abandon() if forgotten else settlement, now)

    return settle


def never_probe(right: Function) -> Function:
    async def probe(self: Prober, entity: EntityPath) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    return probe


def back_off_for_long(right: Function) -> Function:
    def back_off(
        self: EntityBackoffs, entity: EntityPath, backoff: Backoff, reason: str, least: float = 0.0
    ) -> None:
        right(self, entity, _FOR_LONG, reason, least)

    return back_off


def suspend_all_for_one(right: Function) -> Function:
    def back_off(self: EntityBackoffs, entity: EntityPath, *arguments: Any, **named: Any) -> None:
        right(self, entity, *arguments, **named)
        for other in ENTITIES:
            if other != entity:
                right(self, other, _FOR_LONG, "another's trouble")

    return back_off


def look_all_the_time(right: Function) -> Function:
    def until_next_look(self: Syphon, failures: int) -> float:
        return 0.5

    return until_next_look


def wait_for_long(right: Function) -> Function:
    async def send_in_time(
        broker: Any, entity: Any, messages: Any, seconds: float, *more: Any
    ) -> None:
        await right(broker, entity, messages, 10.0 * seconds, *more)

    return send_in_time


def lock_for_a_minute(right: Any) -> Any:
    return attrs.evolve(right, lock_duration=backlog.LEGACY_LOCK)


MUTANTS: Final = (
    Mutant("a completed message comes again", Queue, "settle", give_some_back_instead),
    Mutant("nobody probes", Prober, "_probe", never_probe),
    Mutant("the syphon backs off for long", EntityBackoffs, "back_off", back_off_for_long),
    Mutant("one entity's trouble suspends all", EntityBackoffs, "back_off", suspend_all_for_one),
    Mutant("the syphon looks all the time", Syphon, "_until_next_look", look_all_the_time),
    Mutant("an attempt takes ten times as long", primary_sender, "send_in_time", wait_for_long),
    Mutant("backlog queues lock for a minute", backlog, "QUEUE_PROPERTIES", lock_for_a_minute),
)
