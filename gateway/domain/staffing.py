"""How many processes listen to a queue: rules, bounds, and the patience before there are fewer."""

from collections.abc import Callable
from math import ceil

import attrs
from attrs import validators

_at_least_one = validators.ge(1)
_positive = validators.gt(0.0)
_MESSAGES: int | None = 100
_AGE: float | None = 30.0
_DRAIN: float | None = 60.0


@attrs.frozen(kw_only=True)
class Workload:
    """What is known of the queues of one listener, and of the processes that work on them."""

    depth: int | None  # messages that wait or are worked on; None: the namespace can't tell
    oldest_age: float | None = None  # seconds; None: nobody can tell
    is_announced: bool = False  # somebody has said since the last look that messages come
    processes: int  # that there should be by now
    parallel: int  # handlers of one process that run at once
    arrivals: float = 0.0  # messages a second, since the last look
    handling: float | None = None  # seconds of a handler, a mean; None: none has ended yet
    load: float | None = None  # of all processors, 0 to 1; None: this system doesn't tell


Rule = Callable[[Workload], int]
"""How many processes a listener needs. What it wants is kept within bounds."""


@attrs.frozen
class ByDepth:
    """One process for every so many messages."""

    messages: int = attrs.field(validator=_at_least_one)

    def __call__(self, workload: Workload) -> int:
        return -(-(workload.depth or 0) // self.messages)


@attrs.frozen
class ByAge:
    """
    Twice the processes there are while the oldest message is older than `target` seconds, and no
    fewer than there are while it is older than half of that; never more than messages.
    """

    target: float = attrs.field(validator=_positive)

    def __call__(self, workload: Workload) -> int:
        age, processes = workload.oldest_age, workload.processes
        if age is None or age <= self.target / 2:
            return 0
        wanted = 2 * max(1, processes) if age > self.target else processes
        return wanted if workload.depth is None else min(wanted, workload.depth)


@attrs.frozen
class ByResponseTime:
    """
    As many as it takes to keep up with what comes and to empty the queue within so many seconds.

    Little's law: handlers that are busy = messages a second x seconds of one handler.
    """

    within: float = attrs.field(validator=_positive)

    def __call__(self, workload: Workload) -> int:
        if workload.handling is None:
            return 0
        rate = workload.arrivals + (workload.depth or 0) / self.within
        return ceil(rate * workload.handling / workload.parallel)


@attrs.frozen
class Most:
    """
    As many as the rule that wants most of them; one at least while there are messages, and while
    nobody can tell that there are none.
    """

    rules: tuple[Rule, ...]

    def __call__(self, workload: Workload) -> int:
        wanted = max((rule(workload) for rule in self.rules), default=0)
        if workload.depth is None:
            return max(1, wanted, workload.processes)
        return max(1, wanted) if workload.depth else wanted


@attrs.frozen(kw_only=True)
class StaffingOptions:
    """Bounds of one listener's processes, and what its rules aim at. Times are seconds."""

    min_processes: int = attrs.field(default=0, validator=validators.ge(0))
    max_processes: int = attrs.field(default=4, validator=_at_least_one)
    # Of the three rules the one that wants most counts; None: that one isn't asked.
    messages_per_process: int | None = attrs.field(
        default=_MESSAGES, validator=validators.optional(_at_least_one)
    )
    target_age: float | None = attrs.field(default=_AGE, validator=validators.optional(_positive))
    drain_within: float | None = attrs.field(
        default=_DRAIN, validator=validators.optional(_positive)
    )
    # Fewer must have been enough for so long, before each step down.
    cooldown: float = attrs.field(default=60.0, validator=validators.ge(0.0))

    def make_rule(self) -> Rule:
        """The rule of these options."""
        rules = list[Rule]()
        if self.messages_per_process is not None:
            rules.append(ByDepth(self.messages_per_process))
        if self.target_age is not None:
            rules.append(ByAge(self.target_age))
        if self.drain_within is not None:
            rules.append(ByResponseTime(self.drain_within))
        return Most(tuple(rules))


@attrs.define(eq=False, kw_only=True)
class Staffing:
    """
    How many processes there should be: more at once, fewer after a quiet time and by halves.

    Above `max_load` there are no more of them, but for the first one.
    """

    options: StaffingOptions
    rule: Rule
    max_load: float = 1.0  # 0 to 1
    _quiet_since: float | None = attrs.field(default=None, init=False)

    def decide(self, workload: Workload, now: float) -> int:
        """How many there should be from now on; `now` in seconds, of a clock that never jumps."""
        wanted, present = self._wanted(workload), self._bounded(workload.processes)
        if wanted >= present:
            self._quiet_since = None
            return wanted
        if self._quiet_since is None:
            self._quiet_since = now
        if now - self._quiet_since < self.options.cooldown:
            return present
        self._quiet_since = now
        return max(wanted, self._bounded(present // 2))

    def forget(self) -> None:
        """Nobody knows how it is now: a quiet time begins anew."""
        self._quiet_since = None

    def _wanted(self, workload: Workload) -> int:
        wanted = max(self.rule(workload), int(workload.is_announced))
        if workload.load is not None and workload.load > self.max_load:
            wanted = min(wanted, max(1, workload.processes))
        return self._bounded(wanted)

    def _bounded(self, processes: int) -> int:
        return max(self.options.min_processes, min(processes, self.options.max_processes))
