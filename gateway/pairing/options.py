"""How a pair behaves: the options of the `[pairing]` section. All times are seconds."""

import enum

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff

positive = validators.gt(0.0)


class WhileSuspect(enum.Enum):
    DIVERT = "divert"
    RAISE = "raise"  # as the legacy client: the error goes to the caller


class OnUnknown(enum.Enum):
    DIVERT = "divert"  # at least once: a duplicate is possible
    RAISE = "raise"  # the caller learns that nobody knows


class OnUnreachable(enum.Enum):
    DIVERT = "divert"  # a probe found the entity deleted or disabled: sends go on to the backlog
    RAISE = "raise"  # as the legacy client: sends fail with what the probe found


class UnknownEntity(enum.Enum):
    DIVERT = "divert"
    REFUSE = "refuse"


class BacklogTimeToLive(enum.Enum):
    DEDUCT = "deduct"  # time to live keeps running in the backlog
    RESTART = "restart"  # as the legacy client


@attrs.frozen(kw_only=True)
class EntityRule:
    """What differs for the entities that match, e.g. `orders/*`. None: as the pair says."""

    match: str
    failover_interval: float | None = attrs.field(
        default=None, validator=validators.optional([validators.ge(0.0), validators.le(3600.0)])
    )
    on_unknown: OnUnknown | None = None
    unknown_entity: UnknownEntity | None = None
    divert: bool = True  # false: this entity never leaves the primary


@attrs.frozen(kw_only=True)
class PairOptions:
    """How sends are judged and diverted, and how entities come back."""

    label: str
    failover_interval: float = attrs.field(
        default=60.0, validator=[validators.ge(0.0), validators.le(3600.0)]
    )
    send_timeout: float = attrs.field(default=30.0, validator=positive)
    attempt_timeout: float = attrs.field(default=10.0, validator=positive)
    suspect_wait: float = attrs.field(default=0.25, validator=validators.ge(0.0))
    trial_pause: Backoff = Backoff(first=0.5, cap=5.0)
    busy_pause: float = attrs.field(default=10.0, validator=positive)
    backlog_queues: int = attrs.field(default=10, validator=validators.ge(1))
    backlog_cooldown: float = attrs.field(default=30.0, validator=positive)
    ping_interval: float = attrs.field(
        default=60.0, validator=[validators.ge(1.0), validators.le(1800.0)]
    )
    successes_to_return: int = attrs.field(default=2, validator=validators.ge(1))
    max_inflight: int = attrs.field(default=64 * 1024 * 1024, validator=validators.ge(1))  # bytes
    throttle_failover_after: float | None = attrs.field(
        default=None, validator=validators.optional(positive)
    )
    divert_on_quota: bool = False
    while_suspect: WhileSuspect = WhileSuspect.DIVERT
    on_unknown: OnUnknown = OnUnknown.DIVERT
    on_unreachable: OnUnreachable = OnUnreachable.DIVERT
    unknown_entity: UnknownEntity = UnknownEntity.DIVERT
    entities: tuple[EntityRule, ...] = ()


@attrs.frozen(kw_only=True)
class SyphonOptions:
    """How the backlog moves back."""

    batch: int = attrs.field(default=100, validator=[validators.ge(1), validators.le(1000)])
    attempt_timeout: float = attrs.field(default=10.0, validator=positive)
    hold: Backoff = Backoff(first=1.0, cap=300.0)  # an entity's rest after an unknown outcome
    retry: Backoff = Backoff(first=1.0, cap=30.0)  # its rest after any other failure
    busy_pause: float = attrs.field(default=10.0, validator=positive)
    queue_retry: Backoff = Backoff(first=1.0, cap=60.0)  # a backlog queue's that can't be read
    gone_grace: float = attrs.field(default=3600.0, validator=validators.ge(0.0))
    rescan: float = attrs.field(default=60.0, validator=positive)  # looks for new backlog queues
    stall_after: float = attrs.field(default=60.0, validator=positive)
    max_drain_rate: float | None = attrs.field(
        default=None, validator=validators.optional(positive)
    )  # messages/s
    backlog_ttl: BacklogTimeToLive = BacklogTimeToLive.DEDUCT
