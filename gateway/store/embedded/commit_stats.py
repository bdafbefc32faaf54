"""The durations of a store's commits, and the numbers of operations that share one."""

import attrs

from gateway.domain.health.distribution import BATCHES, SHORT_LATENCIES, Histogram


@attrs.frozen(eq=False)
class CommitStats:
    """The writer's thread counts, any thread reads."""

    seconds: Histogram = attrs.field(factory=lambda: Histogram(SHORT_LATENCIES))
    operations: Histogram = attrs.field(factory=lambda: Histogram(BATCHES))

    def note(self, operations: int, seconds: float) -> None:
        """Count a commit."""
        self.operations.note(operations)
        self.seconds.note(seconds)
