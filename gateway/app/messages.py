"""`pairgate send`, `receive` and `peek`: one message or a few, for people at a terminal."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.app.targets import Target, open_target
from gateway.capabilities import Peeks
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    Busy,
    EntityNotFound,
    GatewayError,
    InvalidRequest,
    NotAuthorized,
    Outcome,
    Untrusted,
)
from gateway.domain.message import Complete, Delivery, Message

ANSWER_SECONDS: Final = 60.0


@attrs.frozen(kw_only=True)
class Where:
    """Which entity, and through what: as `open_target` takes it."""

    entity: str
    namespace: str | None = None
    port_offset: int = 0

    def path(self) -> EntityPath:
        try:
            return EntityPath.parse(self.entity)
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error


@attrs.frozen(kw_only=True)
class Sent:
    """What became of a message."""

    entity: str
    message_id: str
    leg: str
    target: str


async def send(config: Config, outside: Outside, where: Where, message: Message) -> Sent:
    """
    Return when the message is accepted.

    Raises:
        Failure: it wasn't, or nobody knows; the text says which.
    """
    entity = where.path()
    if message.message_id is None:
        message = attrs.evolve(message, message_id=outside.new_id())
    async with AsyncExitStack() as stack:
        target = await _open(stack, config, outside, where, Right.SEND)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                leg = await target.broker.send(entity, [message])
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed(f"send to {entity}", target, error) from error
    return Sent(
        entity=entity.name,
        message_id=str(message.message_id),
        leg=leg.value,
        target=target.name,
    )


async def receive(
    config: Config,
    outside: Outside,
    where: Where,
    show: Callable[[Delivery], None],
    *,
    count: int,
    wait: float,
) -> int:
    """
    Take up to `count` messages, `wait` seconds at most for each; return how many there were.

    Each is completed after `show` has returned, so that none is lost unseen.

    Raises:
        Failure: they can't be received.
    """
    entity = where.path()
    shown = 0
    async with AsyncExitStack() as stack:
        target = await _open(stack, config, outside, where, Right.LISTEN)
        try:
            async with target.broker.open_receiver(entity) as receiver:
                while shown < count:
                    taken: Sequence[Delivery] = ()
                    with trio.move_on_after(wait):
                        taken = await receiver.receive(1)
                    if not taken:
                        break
                    for delivery in taken:
                        show(delivery)
                        shown += 1
                        with trio.fail_after(ANSWER_SECONDS):
                            await receiver.settle(delivery, Complete())
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed(f"receive from {entity}", target, error) from error
    return shown


async def peek(
    config: Config, outside: Outside, where: Where, *, count: int, start: int
) -> Sequence[Delivery]:
    """
    Up to `count` messages from sequence number `start` on; none is taken.

    Raises:
        Failure: this namespace can't show them.
    """
    entity = where.path()
    async with AsyncExitStack() as stack:
        target = await _open(stack, config, outside, where, Right.LISTEN)
        if not isinstance(target.broker, Peeks):
            raise Failure(f"{target.name} can't show messages without taking them")
        try:
            with trio.fail_after(ANSWER_SECONDS):
                return await target.broker.peek(entity, from_sequence=start, limit=count)
        except (GatewayError, trio.TooSlowError) as error:
            raise _failed(f"peek into {entity}", target, error) from error


async def _open(
    stack: AsyncExitStack, config: Config, outside: Outside, where: Where, right: Right
) -> Target:
    return await open_target(
        stack,
        config,
        outside,
        right=right,
        namespace=where.namespace,
        port_offset=where.port_offset,
    )


def _failed(action: str, target: Target, error: GatewayError | trio.TooSlowError) -> Failure:
    reason = str(error) or f"no answer within {ANSWER_SECONDS:.0f} s"
    unknown = isinstance(error, trio.TooSlowError) or (
        isinstance(error, BrokerError) and error.outcome is Outcome.UNKNOWN
    )
    hint = " (nobody knows whether it was done)" if unknown else ""
    if isinstance(error, EntityNotFound):
        hint = (
            f"; name it in queues = [...] of [namespaces.{target.home}] and run"
            " `pairgate provision`, or let a client create it (PUT /NAME)"
        )
    return Failure(f"{action} through {target.name}: {reason}{hint}", _code_of(error))


def _code_of(error: Exception) -> ExitCode:
    if isinstance(error, NotAuthorized | Untrusted):
        return ExitCode.WRONG
    counts = isinstance(error, BrokerError) and error.counts_as_outage
    temporary = isinstance(error, Busy | trio.TooSlowError) or counts
    return ExitCode.TEMPORARY if temporary else ExitCode.FAILED
