"""Lock tokens, as Service Bus has them: UUIDs that nobody can guess from others."""

import random
from collections.abc import Callable
from uuid import UUID


def lock_tokens(rng: random.Random) -> Callable[[], str]:
    return lambda: str(UUID(int=rng.getrandbits(128), version=4))
