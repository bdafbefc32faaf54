"""What comes in from outside: the date, chance, and who watches. Only here they are asked for."""

import random
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import attrs

from gateway.brokers.meter import Meter
from gateway.domain.events import Event
from gateway.ports import Observer
from gateway.telemetry.watch import Watch

SEED_BITS: Final = 64


class Silence:
    """An observer for commands that print their result and nothing else."""

    def report(self, event: Event) -> None:
        """Nothing is to be done."""


def _now() -> datetime:
    return datetime.now(UTC)


def _watched(observer: Observer) -> Watch:
    return observer if isinstance(observer, Watch) else Watch(observer, _now)


@attrs.frozen(kw_only=True)
class Outside:
    """One seed for all choices: every part has a generator of its own, made of it."""

    # Whoever is given, with a watch before it, so that the process can be asked what happened.
    observer: Watch = attrs.field(factory=lambda: _watched(Silence()), converter=_watched)
    started: datetime = attrs.field(factory=_now)
    # Of the namespaces that were opened, by their names.
    meters: dict[str, Meter] = attrs.field(factory=dict)
    seed: int = attrs.field(factory=lambda: random.SystemRandom().getrandbits(SEED_BITS))

    def rng(self, part: str) -> random.Random:
        return random.Random(f"{self.seed}/{part}")

    def new_id(self) -> str:
        return str(uuid4())

    @staticmethod
    def now() -> datetime:
        return _now()
