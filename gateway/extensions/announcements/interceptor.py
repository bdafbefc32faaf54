"""Announces each message that is sent to a namespace."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import attrs

from gateway.capabilities import Batches, sends_in
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.interception import Call, CallKind, Interceptor
from gateway.listening.items import body_size


@attrs.frozen(eq=False)
class Announcing(Interceptor):
    """
    After each call that may have sent messages, calls `announce` with the queue and the bytes of
    the bodies. Needed for namespaces that are polled; namespaces that push wake their receivers
    themselves.
    """

    _announce: Callable[[EntityPath, int], None]

    kinds: ClassVar[frozenset[CallKind]] = frozenset((CallKind.SEND, CallKind.COMMIT))

    def after(self, call: Call, result: Sequence[object] | None) -> None:
        if result is None:
            self._announce_all(call)
        else:
            each = zip(call.batches, result, strict=True)
            self._announce_sent(
                call.entity, [batch for batch, verdict in each if may_have_come(verdict)]
            )

    def error(self, call: Call, error: BaseException) -> None:
        if may_have_come(error):
            self._announce_all(call)

    def _announce_all(self, call: Call) -> None:
        self._announce_sent(call.entity, call.batches)
        for each in sends_in(call.work):
            self._announce_sent(each.entity, [each.messages])

    def _announce_sent(self, entity: EntityPath | None, batches: Batches) -> None:
        if batches and entity is not None:
            self._announce(entity, sum(body_size(each) for batch in batches for each in batch))


def may_have_come(verdict: object) -> bool:
    """False if nothing was sent. All messages may have been accepted after a cancellation."""
    return not isinstance(verdict, BrokerError) or verdict.outcome is not Outcome.NOT_SENT
