"""The settlement that a receiver's outcome asks for, and its confirmation (part 3, 3.4)."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.domain.errors import NotSupported
from gateway.domain.message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MAX_REASON_LENGTH,
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    Settlement,
)
from gateway.wire.amqp.events import (
    Accepted,
    AmqpError,
    DeliveryState,
    Modified,
    Outcome,
    Rejected,
    Released,
)

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
