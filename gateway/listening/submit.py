"""Sends values to a queue that listeners receive from."""

from typing import Generic, TypeVar

import attrs

from gateway.deadlines import answered_within
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Message
from gateway.listening.errors import SubmitError
from gateway.listening.items import CLIENT_ID, REQUEST_ID, Format, body_size
from gateway.listening.triggers import Trigger, Triggers
from gateway.ports import Broker, NewId

T = TypeVar("T")


def _path(queue: str | EntityPath) -> EntityPath:
    return EntityPath.parse(queue) if isinstance(queue, str) else queue


@attrs.frozen(kw_only=True)
class Submitter(Generic[T]):
    """Sends values of one type to `queue`, and wakes its listeners."""

    broker: Broker
    queue: EntityPath = attrs.field(converter=_path)
    format: Format[T]
    new_id: NewId
    client_id: str | None = None
    account: str = ""
    triggers: Triggers | None = None
    timeout: float = 30.0  # seconds

    async def submit(
        self,
        value: T,
        *,
        message_id: str | None = None,
        request_id: str | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
    ) -> str:
        """
        Return the message's id once the namespace has accepted the message. After a cancellation
        the outcome is unknown.

        Raises:
            SubmitError: the send failed; `outcome` says whether the message may have been accepted,
                the cause is the error.
        """
        message = self.message(
            value,
            message_id=message_id,
            request_id=request_id,
            reply_to=reply_to,
            correlation_id=correlation_id,
        )
        has_come = True  # unless the outcome is "not sent"
        try:
            await self._send(message)
        except SubmitError as error:
            has_come = error.outcome is not Outcome.NOT_SENT
            raise
        finally:
            if has_come and self.triggers is not None:
                size = body_size(message)
                self.triggers.publish(Trigger(account=self.account, queue=self.queue, size=size))
        return str(message.message_id)

    def message(
        self,
        value: T,
        *,
        message_id: str | None = None,
        request_id: str | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """
        The message that `submit` sends. Properties that the format sets stay, unless they are given
        here.
        """
        built = self.format.build(value)
        chosen = message_id or built.message_id
        chosen = self.new_id() if chosen is None else chosen
        common = {CLIENT_ID: self.client_id, REQUEST_ID: request_id or str(chosen)}
        known = {name: text for name, text in common.items() if text is not None}
        return attrs.evolve(
            built,
            message_id=chosen,
            reply_to=reply_to or built.reply_to,
            correlation_id=correlation_id or built.correlation_id,
            properties={**known, **built.properties},
        )

    async def _send(self, message: Message) -> None:
        try:
            with answered_within(self.timeout):
                await self.broker.send(self.queue, [message])
        except BrokerError as error:
            raise SubmitError(
                f"{self.queue}: {type(error).__name__}: {error}", outcome=error.outcome
            ) from error
