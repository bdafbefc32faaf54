"""`pairgate send`, `receive` and `peek`: a few messages, for people at a terminal."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import reason_of
from gateway.app.operations.targets import OpenNamespace, beside, cure_of_missing, cure_of_refusal
from gateway.app.operations.ways_in import NamespaceChoice, open_place
from gateway.app.runtime import Runtime
from gateway.capabilities import Peeks, Sessions, send_accepted_by
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    GatewayError,
    InvalidRequest,
    LockLost,
    NotAuthorized,
    Outcome,
    Untrusted,
)
from gateway.domain.health.abilities import Ability
from gateway.domain.message import Abandon, Delivery, Message, Settlement
from gateway.offering import offered, required
from gateway.ports import Receiver

ANSWER_SECONDS: Final = 60.0
# the delivery doesn't count, as the message wasn't processed
GIVE_BACK: Final = Abandon(delivered=False)


@attrs.frozen(kw_only=True)
class Where(NamespaceChoice):
    """The entity, and the way to it."""

    entity: str
    session: str | None = None  # only this session

    def path(self) -> EntityPath:
        try:
            return EntityPath.parse(self.entity)
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error


@attrs.frozen(kw_only=True)
class ReceiveOptions:
    """The number of messages to receive, the time to wait for each, and the settlement of all."""

    count: int
    wait: float  # seconds
    settlement: Settlement


@attrs.frozen(kw_only=True)
class SendResult:
    """The result of a send."""

    entity: str
    message_id: str | None  # None: a Storage endpoint takes no id
    accepted_by: str
    target: str
    through_gateway: bool
    namespace: str | None  # if sent directly; None: sent through a gateway


async def send(config: Config, runtime: Runtime, where: Where, message: Message) -> SendResult:
    """
    Return when the message is accepted.

    Raises:
        Failure: the message wasn't sent, or the outcome is unknown; the text says which.
    """
    entity = where.path()
    async with AsyncExitStack() as stack:
        target = await open_place(stack, config, runtime, where, Right.SEND)
        if target.takes_texts_only:
            _check_text(target, message)
        elif message.message_id is None:
            message = attrs.evolve(message, message_id=runtime.new_id())
        try:
            with trio.fail_after(ANSWER_SECONDS):
                accepted_by = await send_accepted_by(target.broker, entity, [message])
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed("send to", entity, target, error, Ability.SEND) from error
    return SendResult(
        entity=entity.name,
        message_id=None if message.message_id is None else str(message.message_id),
        accepted_by=accepted_by.value,
        target=target.name,
        through_gateway=target.running,
        namespace=None if target.running else target.home,
    )


def _check_text(target: OpenNamespace, message: Message) -> None:
    bare = Message(body=message.body, time_to_live=message.time_to_live)
    try:
        is_text = isinstance(message.body, bytes) and bool(message.body.decode())
    except UnicodeDecodeError:
        is_text = False
    if message != bare or not is_text:
        raise Failure(
            f"{target.name} has only Storage endpoints, which take a text and --ttl, and"
            " nothing else; add an endpoint `service-bus-http`, or name a --namespace",
            ExitCode.WRONG,
        )


async def receive(
    config: Config,
    runtime: Runtime,
    where: Where,
    show: Callable[[Delivery], None],
    wish: ReceiveOptions,
) -> int:
    """
    Receive messages as wished; return their number.

    Each message is settled after `show` has returned, so that no message is lost unseen; a message
    that `show` raises for is abandoned. Messages are abandoned at the end only, because they would
    be delivered again.

    Raises:
        Failure: the messages can't be received, or `show` has raised it.
    """
    entity = where.path()
    async with AsyncExitStack() as stack:
        target = await open_place(stack, config, runtime, where, Right.LISTEN)
        take = _Take(show=show, wish=wish)
        try:
            async with _receiver(target, entity, where.session) as receiver:
                await take.run(receiver)
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed("receive from", entity, target, error, Ability.RECEIVE) from error
    if take.failure is not None:
        raise take.failure
    return take.shown


@attrs.define(kw_only=True)
class _Take:
    show: Callable[[Delivery], None]
    wish: ReceiveOptions
    shown: int = 0
    # of `show`; raised later, because the receiver may belong to a task of its own
    failure: Failure | None = None

    async def run(self, receiver: Receiver) -> None:
        """Show and settle the messages. Unsettled ones are released when the receiver is closed."""
        kept = list[Delivery]()
        while self.shown < self.wish.count and (delivery := await self._next(receiver)) is not None:
            try:
                self.show(delivery)
            except Failure as failure:
                self.failure = failure
                kept.append(delivery)
                break
            self.shown += 1
            if isinstance(self.wish.settlement, Abandon):
                kept.append(delivery)
            else:
                await _settle(receiver, delivery, self.wish.settlement)
        back = self.wish.settlement if isinstance(self.wish.settlement, Abandon) else GIVE_BACK
        for delivery in kept:
            with suppress(LockLost):  # the message was abandoned before
                await _settle(receiver, delivery, back)

    async def _next(self, receiver: Receiver) -> Delivery | None:
        taken: Sequence[Delivery] = ()
        with trio.move_on_after(self.wish.wait):
            taken = await receiver.receive(1)
        return taken[0] if taken else None


async def _settle(receiver: Receiver, delivery: Delivery, settlement: Settlement) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        await receiver.settle(delivery, settlement)


def _receiver(
    target: OpenNamespace, entity: EntityPath, session: str | None
) -> AbstractAsyncContextManager[Receiver]:
    if session is None:
        return target.broker.open_receiver(entity)
    return required(target.broker, Sessions).open_session(entity, session)


async def peek(
    config: Config, runtime: Runtime, where: Where, *, count: int, start: int
) -> Sequence[Delivery]:
    """
    Up to `count` messages from sequence number `start` on, without locking them.

    Raises:
        Failure: the namespace can't peek, or doesn't answer.
    """
    entity = where.path()
    async with AsyncExitStack() as stack:
        target = await open_place(stack, config, runtime, where, Right.LISTEN)
        peeks = offered(target.broker, Peeks)
        if peeks is None:
            raise Failure(f"{target.name} can't peek messages")
        try:
            with trio.fail_after(ANSWER_SECONDS):
                return await peeks.peek(entity, from_sequence=start, limit=count)
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed("peek into", entity, target, error, Ability.RECEIVE) from error


def _failed(
    action: str,
    entity: EntityPath,
    target: OpenNamespace,
    error: GatewayError | trio.TooSlowError,
    ability: Ability,
) -> Failure:
    reason = reason_of(error, target.namespace, entity, ANSWER_SECONDS)
    unknown = isinstance(error, trio.TooSlowError) or (
        isinstance(error, BrokerError) and error.outcome is Outcome.UNKNOWN
    )
    hint = " (the outcome is unknown: it may have been done)" if unknown else ""
    if isinstance(error, EntityNotFound):
        hint = cure_of_missing(target, str(entity))
    if isinstance(error, NotAuthorized):
        hint = cure_of_refusal(target, ability, error)
    way = f"through {target.name}"
    if target.passes_by:
        way = f"directly to {target.name}, because no gateway answers here"
    return Failure(f"{action} {entity} {way}: {beside(way, reason)}{hint}", _code_of(error))


def _code_of(error: Exception) -> ExitCode:
    if isinstance(error, NotAuthorized | Untrusted):
        return ExitCode.WRONG
    counts = isinstance(error, BrokerError) and error.counts_as_outage
    temporary = isinstance(error, Busy | trio.TooSlowError) or counts
    return ExitCode.TEMPORARY if temporary else ExitCode.FAILED
