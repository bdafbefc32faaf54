"""
`[large_messages]`: an event for each send of a message that is larger than `above`.

An operator who moves queues to a service with a smaller limit learns here, beforehand, which ones
have larger messages: beanstalkd takes 65,535 bytes unless told otherwise, Service Bus 256 KiB.

An interceptor, and the table with its option.
"""

from typing import ClassVar, Final

import attrs
from attrs import validators

from gateway.app.assembly.interceptor_rows import InterceptorRow, Place
from gateway.domain.events.gateway import Event
from gateway.domain.option_fields import BYTES
from gateway.extensions.tables import Table
from gateway.interception import Call, CallKind, Interceptor
from gateway.ports import Observer
from gateway.wire.amqp.message import encoded_size


@attrs.frozen(kw_only=True)
class LargeMessages:
    """`[large_messages]`: without this table no message is large."""

    above: int = attrs.field(default=65_535, validator=validators.ge(1), metadata=BYTES)


@attrs.frozen(kw_only=True)
class LargeMessageSent(Event):
    """A large message was given to a namespace, whatever became of it."""

    same = ("namespace", "entity")  # for a while, the further ones of a queue are counted

    namespace: str
    entity: str
    bytes: int  # of the largest message of the send, encoded


@attrs.frozen
class LargeMessageInterceptor(Interceptor):
    """Reports sends of a message above the limit."""

    kinds: ClassVar[frozenset[CallKind]] = frozenset((CallKind.SEND, CallKind.SCHEDULE))

    namespace: str
    limit: int
    observer: Observer

    def before(self, call: Call) -> None:
        """Report the send; it goes on."""
        sizes = (encoded_size(message) for batch in call.batches for message in batch)
        if (largest := max(sizes, default=0)) > self.limit:
            self.observer.report(
                LargeMessageSent(
                    namespace=self.namespace, entity=str(call.entity or ""), bytes=largest
                )
            )


def _make(place: Place) -> Interceptor | None:
    options = place.config.of(TABLE)
    if options is None:
        return None
    return LargeMessageInterceptor(place.namespace.name, options.above, place.runtime.observer)


TABLE: Final = Table[LargeMessages | None](
    name="large_messages", kind=LargeMessages | None, missing=None
)
ROW: Final = InterceptorRow(
    "large messages", "pairgate_beanstalkd/large_messages.py", "[large_messages]", _make
)
