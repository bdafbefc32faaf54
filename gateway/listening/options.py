"""Options of a listener. All times are seconds."""

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff
from gateway.domain.option_fields import BYTES, NUMBER
from gateway.listening.scaling.polling import IdlePolling

positive = validators.gt(0.0)
at_least_one = validators.ge(1)
a_few = validators.and_(at_least_one, validators.le(10_000))
POISON_THRESHOLD: int | None = 5
SWEEP: float | None = 60.0


@attrs.frozen(kw_only=True)
class ListenerOptions:
    """Limits and pauses of one listener."""

    # Messages of one receive: Storage Queue delivers at most 32.
    batch: int = attrs.field(default=32, validator=[at_least_one, validators.le(1000)])
    parallel: int = attrs.field(default=32, validator=a_few)  # handlers that run at once
    tasks: int = attrs.field(default=1, validator=a_few)  # at the start, per queue
    max_tasks: int = attrs.field(default=100, validator=a_few)  # per queue
    # Beyond these nothing is received; one batch of each task may exceed them.
    max_locked: int = attrs.field(default=1000, validator=at_least_one)  # messages locked at once
    max_inflight: int = attrs.field(
        default=64 * 1024 * 1024, validator=at_least_one, metadata=BYTES
    )
    idle_min: float = attrs.field(default=0.0, validator=validators.ge(0.0))
    idle_max: float = attrs.field(default=60.0, validator=positive)
    # Between receives of an idle queue that triggers wake, unless every sender is known to announce
    # its messages; None: never.
    sweep: float | None = attrs.field(default=SWEEP, validator=validators.optional(positive))
    # A message with more deliveries isn't handled; None: the namespace has its own limit.
    poison_threshold: int | None = attrs.field(
        default=POISON_THRESHOLD, validator=validators.optional(at_least_one)
    )
    retry: Backoff = Backoff(first=1.0, cap=30.0)  # backoff of a message whose handler failed
    # while an endpoint that handlers need is down
    endpoint_pause: Backoff = Backoff(first=1.0, cap=60.0)
    receive_retry: Backoff = Backoff(first=0.5, cap=30.0)  # of a queue that can't be received from
    settle_retry: Backoff = Backoff(first=0.2, cap=5.0)
    # of all requests but receives
    answer_timeout: float = attrs.field(default=10.0, validator=positive)
    # if the namespace doesn't report it
    lock_duration: float = attrs.field(default=30.0, validator=positive)
    # locks, while handlers run; false: handlers are cancelled before their lock expires
    renew: bool = True
    tune_lock: bool = True  # longer locks, if the listener sets them and they prove too short
    # between requests for the depth
    scale_pause: float = attrs.field(default=10.0, validator=positive)
    # Processor load, as the injected `load` measures it: above it no tasks are added.
    max_load: float = attrs.field(
        default=0.9, validator=[positive, validators.le(1.0)], metadata=NUMBER
    )
    grace: float = attrs.field(default=20.0, validator=validators.ge(0.0))  # of a drain

    @property
    def polling(self) -> IdlePolling:
        return IdlePolling(minimum=self.idle_min, maximum=self.idle_max)
