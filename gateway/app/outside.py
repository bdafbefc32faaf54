"""What comes in from outside: the date, chance, and who watches. Only here they are asked for."""

import random
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import attrs

from gateway.domain.events import Event
from gateway.ports import Observer

SEED_BITS: Final = 64


class Silence:
    """An observer for commands that print their result and nothing else."""

    def report(self, event: Event) -> None:
        """Nothing is to be done."""


@attrs.frozen(kw_only=True)
class Outside:
    """One seed for all choices: every part has a generator of its own, made of it."""

    observer: Observer = attrs.field(factory=Silence)
    seed: int = attrs.field(factory=lambda: random.SystemRandom().getrandbits(SEED_BITS))

    def rng(self, part: str) -> random.Random:
        return random.Random(f"{self.seed}/{part}")

    def new_id(self) -> str:
        return str(uuid4())

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)
