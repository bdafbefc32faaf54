"""Exponential backoff with a cap and jitter."""

import random

import attrs
from attrs import validators

from gateway.domain.option_fields import NUMBER


@attrs.frozen(kw_only=True)
class Backoff:
    """
    Delays that double from `first` to `cap`, in seconds, each drawn from +- `jitter` of itself.

    The cap applies before the jitter. Jitter keeps many gateways from retrying at the same moment.
    """

    first: float = attrs.field(default=1.0, validator=validators.gt(0))
    cap: float = attrs.field(default=60.0, validator=validators.gt(0))
    jitter: float = attrs.field(
        default=0.2, validator=[validators.ge(0), validators.lt(1)], metadata=NUMBER
    )

    def __attrs_post_init__(self) -> None:
        if self.first > self.cap:
            raise ValueError(f"first must be <= cap, {self.cap:g} s: {self.first:g} s")

    def delay(self, failures: int, rng: random.Random) -> float:
        """The delay in seconds after that many consecutive failures; `failures` starts at 1."""
        exponent = min(failures - 1, 63)  # avoids an overflow; every cap is reached long before
        return jittered(min(self.cap, self.first * 2.0**exponent), self.jitter, rng)


def jittered(seconds: float, jitter: float, rng: random.Random) -> float:
    """A random duration within the share `jitter` of `seconds`."""
    return seconds * (1.0 + jitter * (2.0 * rng.random() - 1.0))
