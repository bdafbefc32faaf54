"""The other direction of a listener: values are put into a queue."""

from typing import Generic, TypeVar

import attrs
import trio

from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, Outcome
from gateway.domain.message import Leg, Message
from gateway.listener.bodies import body_size
from gateway.listener.errors import SubmitError
from gateway.listener.items import CLIENT_ID, REQUEST_ID, Format
from gateway.listener.triggers import Trigger, Triggers
from gateway.ports import Broker, NewId

T = TypeVar("T")


def _path(queue: str | EntityPath) -> EntityPath:
    return EntityPath.parse(queue) if isinstance(queue, str) else queue


@attrs.frozen(kw_only=True)
class Submitter(Generic[T]):
    """Puts values of one type into `queue`, and wakes those who listen to it."""

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
        Return once the namespace owns the message; say its id. Cancelled, nobody knows.

        Raises:
            SubmitError: whatever the namespace or the way to it answered; `outcome` says whether
                the message may have arrived, the cause what it was.
        """
        message = self.message(
            value,
            message_id=message_id,
            request_id=request_id,
            reply_to=reply_to,
            correlation_id=correlation_id,
        )
        has_come = True  # unless an error is sure that it hasn't
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
        """What `submit` sends. What the format has set and isn't named here stays as it is."""
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

    async def _send(self, message: Message) -> Leg:
        try:
            with trio.move_on_after(self.timeout):
                return await self.broker.send(self.queue, [message])
        except BrokerError as error:
            raise SubmitError(
                f"{self.queue}: {type(error).__name__}: {error}", outcome=error.outcome
            ) from error
        raise SubmitError(
            f"{self.queue}: no answer within {self.timeout:g} s", outcome=Outcome.UNKNOWN
        )
