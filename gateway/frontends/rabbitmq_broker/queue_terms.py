"""
The arguments of a queue, as far as they concern a namespace that isn't RabbitMQ. What only says how
RabbitMQ keeps a queue has no effect; what the namespace can't do is refused by its name.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import attrs

from gateway.domain.entity import QueueProperties
from gateway.frontends.rabbitmq_broker.refusals import ClientRefused, not_implemented
from gateway.wire.rabbitmq.errors import PRECONDITION_FAILED

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
_DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
_LIFE: Final = "x-message-ttl"
_EXPIRES: Final = "x-expires"
_MOST: Final = "x-max-length"
_MOST_BYTES: Final = "x-max-length-bytes"
_OVERFLOW: Final = "x-overflow"
_DELIVERIES: Final = "x-delivery-limit"
_TYPE: Final = "x-queue-type"
_REFUSING: Final = frozenset({"reject-publish", "reject-publish-dlx"})
_OVERFLOWS: Final = _REFUSING | {"drop-head"}
# No namespace of another kind has these.
_NOT_HERE: Final = frozenset({"x-max-priority", "x-single-active-consumer"})
_TYPES: Final = frozenset({"classic", "quorum"})
_LONGEST: Final = 2**32  # milliseconds, which RabbitMQ doesn't take either
# RabbitMQ's classic queues deliver a message without end.
_ANY_NUMBER: Final = 2**31 - 1
_LONGEST_LOCK: Final = timedelta(minutes=5)  # that Service Bus has; each lock is renewed
_MILLISECOND: Final = timedelta(milliseconds=1)


@attrs.frozen(kw_only=True)
class QueueTerms:
    life: timedelta | None = None  # of each message
    expires: float | None = None  # seconds without use, after which the queue is deleted
    most: int | None = None  # messages
    most_bytes: int | None = None
    refuses: bool = False  # a publish to a full queue; else its oldest message goes
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    deliveries: int | None = None  # of a message before it is dead-lettered

    @property
    def is_bounded(self) -> bool:
        return self.most is not None or self.most_bytes is not None

    @property
    def properties(self) -> QueueProperties:
        """The properties of the queue in its namespace."""
        return QueueProperties(
            lock_duration=_LONGEST_LOCK,
            max_delivery_count=_ANY_NUMBER if self.deliveries is None else self.deliveries + 1,
            default_time_to_live=self.life,
            dead_lettering_on_expiration=self.dead_letter_exchange is not None,
        )


def read_terms(queue: str, arguments: Mapping[str, Any] | None) -> QueueTerms:
    """
    The terms in the arguments of `queue.declare`.

    Raises:
        ClientRefused: a value isn't valid, or the namespace can't do it.
    """
    given = _Arguments(queue, arguments or {})
    if unknown := sorted(_NOT_HERE.intersection(given.values)):
        raise not_implemented(f"{unknown[0]} of queue '{queue}'")
    kind = given.text(_TYPE)
    if kind is not None and kind not in _TYPES:
        raise not_implemented(f"{_TYPE} '{kind}' of queue '{queue}'")
    overflow = given.text(_OVERFLOW)
    if overflow is not None and overflow not in _OVERFLOWS:
        raise given.wrong(_OVERFLOW, f"{overflow!r} isn't drop-head or reject-publish")
    exchange, key = given.text(DEAD_LETTER_EXCHANGE), given.text(_DEAD_LETTER_KEY)
    if key is not None and exchange is None:
        raise given.wrong(_DEAD_LETTER_KEY, f"{DEAD_LETTER_EXCHANGE} is missing")
    life, expires = given.number(_LIFE), given.number(_EXPIRES)
    if expires == 0:
        raise given.wrong(_EXPIRES, "more than 0 expected")
    return QueueTerms(
        life=None if life is None else max(life, 1) * _MILLISECOND,
        expires=None if expires is None else expires / 1000,
        most=given.number(_MOST),
        most_bytes=given.number(_MOST_BYTES),
        refuses=overflow in _REFUSING,
        dead_letter_exchange=exchange,
        dead_letter_key=key,
        deliveries=given.number(_DELIVERIES),
    )


@attrs.frozen
class _Arguments:
    queue: str
    values: Mapping[str, Any]

    def wrong(self, name: str, why: str) -> ClientRefused:
        text = f"invalid arg '{name}' for queue '{self.queue}' in vhost '/': {why}"
        return ClientRefused(PRECONDITION_FAILED, text)

    def number(self, name: str) -> int | None:
        if name not in self.values:
            return None
        found = self.values[name]
        if type(found) is not int:
            raise self.wrong(name, f"a number expected, got {found!r:.100}")
        if not 0 <= found < _LONGEST:
            raise self.wrong(name, f"0 to {_LONGEST - 1} expected, got {found}")
        return found

    def text(self, name: str) -> str | None:
        found = self.values.get(name)
        if found is not None and not isinstance(found, str):
            raise self.wrong(name, f"a text expected, got {found!r:.100}")
        return found
