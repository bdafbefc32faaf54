"""Parts of the tests of queue content that other tests need, too."""

import attrs

from gateway.domain.clocks.times import Now
from gateway.domain.errors import QuotaExceeded
from gateway.store.engine.records import Row
from tests.store.engine.enqueue import Way
from tests.store.engine.queue import at


def doubtful(seconds: float) -> Now:
    """The wall clock has just jumped: nothing is done by it for a minute."""
    return at(seconds, untrusted_until=seconds + 60)


@attrs.define
class NoWay(Way):
    """A way on which no message can go."""

    text: str = "there is full"

    def copies(self, row: Row, hops: int, now: Now) -> list[tuple[Way, Row]]:
        raise QuotaExceeded(self.text)
