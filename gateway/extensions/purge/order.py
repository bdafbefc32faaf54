"""The control call of a purge: an operator deletes the messages of one backlog queue."""

from typing import Final

import attrs

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.operators.control import check_reason
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall


@attrs.frozen(kw_only=True)
class PurgeOrder:
    """
    An operator's call that purges a backlog queue. Without `confirm` the messages are only counted.

    Raises:
        InvalidRequest: the queue's name is malformed, `confirm` doesn't repeat it, or the number of
            messages is missing or negative.
    """

    queue: str
    dead_letters: bool = False  # the queue's dead letters instead of its messages
    confirm: str = ""  # repeats `queue`
    messages: int | None = None  # that the operator has seen; no more are deleted
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        EntityPath.parse(self.queue)
        check_reason(self.reason)
        if self.confirm and self.confirm != self.queue:
            raise InvalidRequest("confirm: the name of the queue expected, as in `queue`")
        if self.messages is not None and self.messages < 0:
            raise InvalidRequest("messages: 0 or more expected")
        if self.executes and self.messages is None:
            raise InvalidRequest("messages: the number of messages that were seen expected")

    @property
    def executes(self) -> bool:
        return bool(self.confirm)

    @property
    def path(self) -> EntityPath:
        """The queue, or its sub-queue of dead letters."""
        queue = EntityPath(self.queue)
        return queue.dead_letter if self.dead_letters else queue


@attrs.frozen(kw_only=True)
class PurgeAnswer:
    """The result of a purge. `left` are messages that others had locked, for example a syphon."""

    queue: str
    dead_letters: bool
    messages: int  # before
    purged: int = 0
    left: int = 0


PURGE: Final = ControlCall(
    name="purge",
    summary="counts the messages of a backlog queue, or deletes them",
    request=PurgeOrder,
    answer=PurgeAnswer,
    refusals=OF_NAMESPACE,
    audited=("purged", "left"),
    patience=600.0,  # for all messages of a backlog queue
)
