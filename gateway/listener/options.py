"""How a listener behaves. All times are seconds."""

import attrs
from attrs import validators

from gateway.domain.backoff import Backoff
from gateway.domain.polling import IdlePolling

positive = validators.gt(0.0)
at_least_one = validators.ge(1)
POISON_THRESHOLD: int | None = 5
SWEEP: float | None = 60.0


@attrs.frozen(kw_only=True)
class ListenerOptions:
    """Bounds and pauses of one listener."""

    # Messages of one request: Storage Queue has at most 32.
    batch: int = attrs.field(default=32, validator=[at_least_one, validators.le(1000)])
    parallel: int = attrs.field(default=32, validator=at_least_one)  # handlers that run at once
    tasks: int = attrs.field(default=1, validator=at_least_one)  # at the start, of each queue
    max_tasks: int = attrs.field(default=100, validator=at_least_one)  # of each queue
    # Past these nothing is taken; what one batch of each task brings may be above.
    max_held: int = attrs.field(default=1000, validator=at_least_one)  # messages locked at once
    max_inflight: int = attrs.field(default=64 * 1024 * 1024, validator=at_least_one)  # bytes
    idle_min: float = attrs.field(default=0.0, validator=validators.ge(0.0))
    idle_max: float = attrs.field(default=60.0, validator=positive)
    # Between looks at an idle queue that triggers wake, unless every sender is known to announce
    # its messages; None: never.
    sweep: float | None = attrs.field(default=SWEEP, validator=validators.optional(positive))
    # More deliveries than that are not tried; None: the namespace has its own limit.
    poison_threshold: int | None = attrs.field(
        default=POISON_THRESHOLD, validator=validators.optional(at_least_one)
    )
    retry: Backoff = Backoff(first=1.0, cap=30.0)  # the rest of a message whose handler failed
    endpoint_pause: Backoff = Backoff(first=1.0, cap=60.0)  # while what the handler needs is down
    receive_retry: Backoff = Backoff(first=0.5, cap=30.0)  # of a queue that can't be read
    settle_retry: Backoff = Backoff(first=0.2, cap=5.0)
    answer_timeout: float = attrs.field(default=10.0, validator=positive)  # all but receiving
    lock_duration: float = attrs.field(default=30.0, validator=positive)  # where nobody tells it
    renew: bool = True  # locks, while handlers run; false: handlers end before their lock does
    tune_lock: bool = True  # longer locks where the listener sets them and they prove too short
    scale_pause: float = attrs.field(default=10.0, validator=positive)  # between looks at the depth
    # Of the processor, as the injected `load` measures it: above there are no more tasks.
    max_load: float = attrs.field(default=0.9, validator=[positive, validators.le(1.0)])
    grace: float = attrs.field(default=20.0, validator=validators.ge(0.0))  # of a drain

    @property
    def polling(self) -> IdlePolling:
        return IdlePolling(minimum=self.idle_min, maximum=self.idle_max)
