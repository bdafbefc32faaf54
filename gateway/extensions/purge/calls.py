"""The control call of a purge."""

from typing import Final

from gateway.extensions.purge.order import PurgeAnswer, PurgeOrder
from gateway.wire.pairgate.control_call import OF_NAMESPACE, ControlCall

PURGE: Final = ControlCall(
    name="purge",
    summary="counts the messages of a backlog queue, or deletes them",
    request=PurgeOrder,
    answer=PurgeAnswer,
    refusals=OF_NAMESPACE,
    audited=("purged", "left"),
    patience=600.0,  # for all messages of a backlog queue
)
