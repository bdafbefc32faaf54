"""The options of `[pairing]` and `[pairing.syphon]`, for all entities or one; times in seconds."""

import enum
import fnmatch
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.failover import FailoverRule
from gateway.domain.option_fields import BYTES, FLAT, NUMBER
from gateway.extensions.tables import HasTables, no_tables

SMALLEST_PAUSE: Final = 2.0  # seconds that a heartbeat may be late without a pause
FEW_SECONDS: float | None = 2.0
HALF_MINUTE: float | None = 30.0
HALF: float | None = 0.5
positive = validators.gt(0.0)


class WhileSuspect(enum.Enum):
    DIVERT = "divert"
    RAISE = "raise"  # as the legacy client: the error goes to the caller


class OnUnknown(enum.Enum):
    DIVERT = "divert"  # at least once: a duplicate is possible
    RAISE = "raise"  # the caller gets the unknown outcome


class OnUnreachable(enum.Enum):
    DIVERT = "divert"  # a probe found the entity deleted or disabled: sends go on to the backlog
    RAISE = "raise"  # as the legacy client: sends fail with the error of the probe


class OnRefusedCredentials(enum.Enum):
    RAISE = "raise"  # the caller gets the error, so that the mistake shows
    DIVERT = (
        "divert"  # an outage, e.g. of a gateway whose password was changed at the primary alone
    )


class UnknownEntity(enum.Enum):
    DIVERT = "divert"
    REFUSE = "refuse"


class Oversized(enum.Enum):
    """A message that the secondary couldn't take is refused, or is for the primary alone."""

    REFUSE = "refuse"  # at any time, so that no outage changes what is accepted
    PRIMARY_ONLY = "primary-only"  # the primary takes it; in an outage it is refused


class BacklogTimeToLive(enum.Enum):
    DEDUCT = "deduct"  # time to live keeps running in the backlog
    RESTART = "restart"  # as the legacy client


@attrs.frozen(kw_only=True)
class EntityRule(HasTables):
    """Options of the entities that match, e.g. `orders/*`. None: the option of the pair."""

    point: ClassVar = "entities"
    match: str
    failover_interval: float | None = attrs.field(
        default=None, validator=validators.optional([validators.ge(0.0), validators.le(3600.0)])
    )
    on_unknown: OnUnknown | None = None
    unknown_entity: UnknownEntity | None = None
    divert: bool = True  # false: this entity never leaves the primary
    extensions: Any = attrs.field(factory=partial(no_tables, "entities"), metadata=FLAT)


@attrs.frozen(kw_only=True)
class PairOptions(HasTables):
    """The options of a pair: when sends are diverted, and when entities return to the primary."""

    point: ClassVar = "pairing"
    label: str
    failover_interval: float = attrs.field(
        default=60.0, validator=[validators.ge(0.0), validators.le(3600.0)]
    )
    send_timeout: float = attrs.field(default=30.0, validator=positive)
    attempt_timeout: float = attrs.field(default=10.0, validator=positive)
    suspect_wait: float = attrs.field(default=0.25, validator=validators.ge(0.0))
    slow_call_duration: float | None = attrs.field(
        default=FEW_SECONDS, validator=validators.optional(positive)
    )
    slow_call_rate: float | None = attrs.field(
        default=HALF,
        validator=validators.optional([validators.gt(0.0), validators.le(1.0)]),
        metadata=NUMBER,
    )
    trial_pause: Backoff = Backoff(first=0.5, cap=5.0)
    busy_pause: float = attrs.field(default=10.0, validator=positive)
    backlog_queues: int = attrs.field(default=10, validator=[validators.ge(1), validators.le(1000)])
    backlog_cooldown: float = attrs.field(default=30.0, validator=positive)
    ping_interval: float = attrs.field(
        default=60.0, validator=[validators.ge(1.0), validators.le(1800.0)]
    )
    orphaned_after: float = attrs.field(default=300.0, validator=positive)
    successes_to_return: int = attrs.field(default=2, validator=validators.ge(1))
    max_inflight: int = attrs.field(
        default=64 * 1024 * 1024, validator=validators.ge(1), metadata=BYTES
    )
    throttle_failover_after: float | None = attrs.field(
        default=None, validator=validators.optional(positive)
    )
    divert_on_quota: bool = False
    while_suspect: WhileSuspect = WhileSuspect.DIVERT
    on_unknown: OnUnknown = OnUnknown.DIVERT
    on_unreachable: OnUnreachable = OnUnreachable.DIVERT
    on_refused_credentials: OnRefusedCredentials = OnRefusedCredentials.RAISE
    unknown_entity: UnknownEntity = UnknownEntity.DIVERT
    # None: the configuration decides by the kinds of the endpoints and of the primary; else refuse.
    oversized: Oversized | None = None
    entities: tuple[EntityRule, ...] = ()
    extensions: Any = attrs.field(factory=partial(no_tables, "pairing"), metadata=FLAT)

    @property
    def slowest_success(self) -> float:
        """Seconds within which an answer counts as a success of its entity."""
        if self.slow_call_duration is None or self.slow_call_rate is None:
            return math.inf
        return self.slow_call_duration


@attrs.frozen(kw_only=True)
class SyphonOptions:
    """The options of the syphon, which moves the backlog to the primary."""

    batch: int = attrs.field(default=100, validator=[validators.ge(1), validators.le(1000)])
    attempt_timeout: float = attrs.field(default=10.0, validator=positive)
    unknown_retry: Backoff = Backoff(
        first=1.0, cap=300.0
    )  # an entity's backoff after an unknown outcome
    retry: Backoff = Backoff(first=1.0, cap=30.0)  # its backoff after any other failure
    busy_pause: float = attrs.field(default=10.0, validator=positive)
    queue_retry: Backoff = Backoff(first=1.0, cap=10.0)  # a backlog queue's that can't be read
    gone_grace: float = attrs.field(default=3600.0, validator=validators.ge(0.0))
    rescan: float = attrs.field(default=60.0, validator=positive)  # looks for new backlog queues
    stall_after: float = attrs.field(default=60.0, validator=positive)
    max_drain_rate: float | None = attrs.field(
        default=None, validator=validators.optional(positive), metadata=NUMBER
    )  # messages/s
    backlog_ttl: BacklogTimeToLive = BacklogTimeToLive.DEDUCT
    # Of heartbeats on the secondary; None: the syphon leaves none.
    heartbeat_interval: float | None = attrs.field(
        default=HALF_MINUTE,
        validator=validators.optional([validators.ge(1.0), validators.le(3600.0)]),
    )


def rule_for(entity: EntityPath, options: PairOptions) -> FailoverRule:
    rule = entity_rule(entity, options.entities)
    interval = options.failover_interval
    if rule is not None and rule.failover_interval is not None:
        interval = rule.failover_interval
    return FailoverRule(interval=interval, successes_to_return=options.successes_to_return)


def shortest_pause(options: PairOptions) -> float:
    """
    Seconds by which a heartbeat must be late to count as a pause of the gateway.

    A shorter pause can't by itself time out an attempt or complete a failover interval.
    """
    harmless = min(shortest_interval(options), options.attempt_timeout) / 2
    return max(SMALLEST_PAUSE, harmless)


def shortest_interval(options: PairOptions) -> float:
    given = (rule.failover_interval for rule in options.entities)
    return min([options.failover_interval, *(seconds for seconds in given if seconds is not None)])


def entity_rule(entity: EntityPath, rules: Sequence[EntityRule]) -> EntityRule | None:
    """The first rule whose pattern matches; case is ignored. A shard has the rule of its queue."""
    key = entity.whole.key
    return next((r for r in rules if fnmatch.fnmatchcase(key, r.match.lower())), None)
