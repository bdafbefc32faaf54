"""Delays: jittered exponential, capped."""

import random

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class Backoff:
    """
    Delays that double from `first` to `cap`, in seconds, each drawn from +- `jitter` of itself.

    The cap bounds the delay before the jitter; jitter keeps many gateways from knocking at once.
    """

    first: float = attrs.field(default=1.0, validator=validators.gt(0))
    cap: float = attrs.field(default=60.0, validator=validators.gt(0))
    jitter: float = attrs.field(default=0.2, validator=[validators.ge(0), validators.lt(1)])

    def delay(self, failures: int, rng: random.Random) -> float:
        """The pause after that many failures in a row; `failures` starts at 1."""
        exponent = min(failures - 1, 63)  # past this every cap is long reached
        return jittered(min(self.cap, self.first * 2.0**exponent), self.jitter, rng)


def jittered(seconds: float, jitter: float, rng: random.Random) -> float:
    """That many seconds, give or take the share `jitter`."""
    return seconds * (1.0 + jitter * (2.0 * rng.random() - 1.0))
