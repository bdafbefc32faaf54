"""`[drill]`, and what is wrong with it."""

from collections.abc import Iterator
from typing import Final

import attrs
from attrs import validators

from gateway.config.options import Config
from gateway.extensions.tables import Table


@attrs.frozen(kw_only=True)
class DrillOptions:
    """`[drill]`: allows operators to rehearse an outage with this gateway. Times are seconds."""

    allowed: bool = False
    max_duration: float = attrs.field(default=900.0, validator=validators.gt(0.0))


DRILL: Final = Table[DrillOptions](name="drill", kind=DrillOptions, missing=DrillOptions())


def problems(config: Config) -> Iterator[str]:
    """Yield a line for each error; each begins with the path of a key."""
    if config.of(DRILL).allowed and config.pairing is None:
        yield "drill.allowed: needs [pairing]; without a pair an outage has no other way"
