"""Autoscaling: the number of processes of a listener, by rules, bounds and a cool-down."""

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
    """The work in the queues of one listener, and the processes that do it."""

    depth: int | None  # messages waiting or in progress; None: not reported
    oldest_age: float | None = None  # seconds; None: not known
    is_announced: bool = False  # a trigger has arrived since the last check
    processes: int  # the current target
    parallel: int  # concurrent handlers of one process
    arrivals: float = 0.0  # messages a second, since the last check
    handling: float | None = None  # mean seconds of a handler; None: none has ended yet
    load: float | None = None  # of all processors, 0 to 1; None: not known


Rule = Callable[[Workload], int]
"""The number of processes that a listener needs, before it is bounded."""


@attrs.frozen
class ByDepth:
    """Wants a process per `messages` messages."""

    messages: int = attrs.field(validator=_at_least_one)

    def __call__(self, workload: Workload) -> int:
        return -(-(workload.depth or 0) // self.messages)


@attrs.frozen
class ByAge:
    """
    Doubles the processes while the oldest message is older than `target` seconds, and keeps their
    number while it is older than half of that; never more processes than messages.
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
    Wants as many processes as are needed to keep up with arrivals and empty the queue in `within`
    seconds.

    Little's law: busy handlers = messages a second x seconds of one handler.
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
    The maximum of the rules; at least one process while there are messages, or the depth isn't
    known.
    """

    rules: tuple[Rule, ...]

    def __call__(self, workload: Workload) -> int:
        wanted = max((rule(workload) for rule in self.rules), default=0)
        if workload.depth is None:
            return max(1, wanted, workload.processes)
        return max(1, wanted) if workload.depth else wanted


@attrs.frozen(kw_only=True)
class AutoscalingOptions:
    """The bounds of one listener's processes, and the targets of its rules. Times are seconds."""

    min_processes: int = attrs.field(default=0, validator=[validators.ge(0), validators.le(1000)])
    max_processes: int = attrs.field(default=4, validator=[_at_least_one, validators.le(1000)])
    # The maximum of the three rules counts. None: the rule is off.
    messages_per_process: int | None = attrs.field(
        default=_MESSAGES, validator=validators.optional(_at_least_one)
    )
    target_age: float | None = attrs.field(default=_AGE, validator=validators.optional(_positive))
    drain_within: float | None = attrs.field(
        default=_DRAIN, validator=validators.optional(_positive)
    )
    # Seconds for which fewer processes must have been enough, before each step down.
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
class Autoscaler:
    """
    Decides the number of processes: scales up at once, and down by halves after a cool-down.

    Above `max_load` it doesn't scale up, except from none to one.
    """

    options: AutoscalingOptions
    rule: Rule
    max_load: float = 1.0  # 0 to 1
    _quiet_since: float | None = attrs.field(default=None, init=False)

    def decide(self, workload: Workload, now: float) -> int:
        """The number of processes from now on. `now` is in seconds of a monotonic clock."""
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
        """Restart the cool-down, because the workload isn't known now."""
        self._quiet_since = None

    def _wanted(self, workload: Workload) -> int:
        wanted = max(self.rule(workload), int(workload.is_announced))
        if workload.load is not None and workload.load > self.max_load:
            wanted = min(wanted, max(1, workload.processes))
        return self._bounded(wanted)

    def _bounded(self, processes: int) -> int:
        return max(self.options.min_processes, min(processes, self.options.max_processes))
