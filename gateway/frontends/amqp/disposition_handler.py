"""
Settles deliveries as the client of a link asks: the settlement that a receiver's outcome asks for,
and its confirmation (part 3, 3.4).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from gateway.capabilities import SettlesMany
from gateway.capabilities.settling import settle_all
from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Delivery,
    Settlement,
)
from gateway.frontends.amqp.context import Context, amqp_error
from gateway.offering import offered
from gateway.ports import Receiver
from gateway.wire.amqp.events import (
    Accepted,
    AmqpError,
    DeliveryState,
    DispositionReceived,
    Modified,
    Outcome,
    Rejected,
    Released,
)

# In flight at once. One alone would let each disposition wait for two answers of a namespace that
# is far; each more makes the groups smaller.
_STEPS: Final = 2


@attrs.define(eq=False)
class _PendingSettlement:
    event: DispositionReceived
    delivery: Delivery
    settlement: Settlement


@attrs.define(eq=False)
class DispositionHandler:
    """
    Settles the deliveries of one link as its client asks, and confirms each only then.

    A receiver that can settle several deliveries in one step gets `_STEPS` steps at once, each with
    every disposition that has arrived meanwhile; any other receiver gets each disposition at once.
    Dispositions that the client has already settled, and so awaits no answer for, may wait a moment
    for more of them; not those that make a message available again.
    """

    _context: Context
    _receiver: Receiver
    _nursery: trio.Nursery
    _on_returned: Callable[[], None]  # none of the messages is going back any more
    # Abandoned and released deliveries whose messages aren't available again yet.
    returning: int = attrs.field(default=0, init=False)
    _asked: list[_PendingSettlement] = attrs.field(factory=list, init=False)
    # the client waits for at least one of them
    _awaited: bool = attrs.field(default=False, init=False)
    _collecting: trio.CancelScope | None = attrs.field(default=None, init=False)
    _beginning: bool = attrs.field(default=False, init=False)  # a step hasn't its group yet
    _steps: int = attrs.field(default=0, init=False)

    def settle(self, event: DispositionReceived, delivery: Delivery) -> None:
        """Settle a delivery soon; returns at once."""
        try:
            asked = _PendingSettlement(event, delivery, settlement_of(event.state))
        except NotSupported as error:
            self._context.engine.settle(event.delivery, Rejected(error=amqp_error(error)))
            return
        self._context.pending.add()
        self.returning += returns(settlement := asked.settlement)
        # A link that was attached in an outage learns only later what its receiver can do.
        if offered(self._receiver, SettlesMany) is None:
            self._nursery.start_soon(self._settle, (asked,))
            return
        self._asked.append(asked)
        self._awaited = self._awaited or not event.settled or returns(settlement)
        if self._collecting is not None and self._urgent:
            self._collecting.cancel()
        self._begin()

    @property
    def _urgent(self) -> bool:
        enough = len(self._asked) >= self._context.options.max_taken
        return self._awaited or enough or self._context.pending.closing

    def _begin(self) -> None:
        if self._asked and not self._beginning and self._steps < _STEPS:
            self._beginning = True
            self._steps += 1
            # The task starts after all input that was read has been handled.
            self._nursery.start_soon(self._step)

    async def _step(self) -> None:
        if not self._urgent:
            with trio.move_on_after(self._context.options.settle_delay) as self._collecting:
                await trio.sleep_forever()
            self._collecting = None
        group, self._asked, self._awaited = self._asked, [], False
        self._beginning = False
        try:
            await self._settle(group)
        finally:
            self._steps -= 1
        self._begin()

    async def _settle(self, group: Sequence[_PendingSettlement]) -> None:
        settlements = [(each.delivery, each.settlement) for each in group]
        seconds, doubts = self._context.options.answer_timeout, self._context.doubts
        for each in group:
            doubts.begin(each.delivery.lock_token)
        try:
            errors = await settle_all(self._receiver, settlements, seconds)
        finally:
            self._context.pending.drop(count=len(group))
            returned = sum(returns(each.settlement) for each in group)
            self.returning -= returned
            if returned and not self.returning:
                self._on_returned()
        engine = self._context.engine
        for each, verdict in zip(group, errors, strict=True):
            error = doubts.resolve(each.delivery.lock_token, verdict)
            if error is None:
                engine.settle(each.event.delivery, confirmation_of(each.event.state))
            else:
                engine.settle(each.event.delivery, Rejected(error=amqp_error(error)))


def returns(settlement: Settlement) -> bool:
    """True if the settlement makes its message available again."""
    return isinstance(settlement, Abandon)


_DEAD_LETTER: Final = "com.microsoft:dead-letter"
_WHY: Final = frozenset((DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION))


def settlement_of(state: DeliveryState | None) -> Settlement:
    """
    The settlement that the outcome asks for.

        accepted                       complete
        modified, undeliverable here   defer
        modified                       abandon: Node's SDK doesn't set delivery-failed
        rejected                       dead-letter, with reason and description
        released, or no outcome        give back, which doesn't count as a delivery

    As Service Bus does, the annotations of `modified` become application properties, and so does
    the info of a rejection besides its reason.

    Raises:
        NotSupported: the state isn't an outcome.
    """
    match state:
        case Accepted():
            return Complete()
        case Modified(undeliverable_here=True):
            return Defer(properties=state.annotations)
        case Modified():
            return Abandon(properties=state.annotations)
        case Rejected(error=error):
            return _dead_letter(error)
        case Released() | None:
            return Abandon(delivered=False)
    raise NotSupported(f"delivery state {state}: an outcome expected")


def confirmation_of(state: DeliveryState | None) -> Outcome | None:
    """
    The state that confirms the settlement to the receiver: its own outcome, a rejection without the
    error.
    """
    match state:
        case Modified(delivery_failed=failed, undeliverable_here=here):
            return Modified(delivery_failed=failed, undeliverable_here=here)
        case Rejected():
            return Rejected()
        case Accepted() | Released():
            return state
    return None


def _dead_letter(error: AmqpError | None) -> DeadLetter:
    """
    With Service Bus's own condition the reason is in the info map; any other condition is the
    reason.
    """
    if error is None:
        return DeadLetter(reason="")
    reason = _text(error.info, DEAD_LETTER_REASON)
    description = _text(error.info, DEAD_LETTER_DESCRIPTION)
    changes = {name: value for name, value in error.info.items() if name not in _WHY}
    if error.condition != _DEAD_LETTER:
        reason, description = reason or error.condition, description or error.description
        changes = {}
    return DeadLetter(
        reason=reason[:MAX_REASON_LENGTH],
        description=description[:MAX_REASON_LENGTH],
        properties=changes,
    )


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key)
    return value if isinstance(value, str) else ""
