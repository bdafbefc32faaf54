"""
What a gateway announces to listeners, as server-sent events.

    event: open                                   from now on nothing is missed
    data: {}

    event: trigger                                something has come, or will soon
    data: {"queue": "orders", "size": 1024}       size in bytes; 0: nobody knows
"""

import json
from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.wire import strict_json
from gateway.wire.event_stream import MAX_EVENT, ServerEvent

OPEN: Final = ServerEvent(name="open", data="{}")
_TRIGGER: Final = "trigger"


def build_announcement(queue: EntityPath, size: int) -> ServerEvent:
    """Say that so many bytes have come to that queue."""
    return ServerEvent(name=_TRIGGER, data=json.dumps({"queue": queue.name, "size": size}))


def parse_announcement(event: ServerEvent) -> tuple[EntityPath, int] | None:
    """
    The queue and the bytes; None where the event says something else.

    Raises:
        InvalidRequest: the event is an announcement that can't be read.
    """
    if event.name != _TRIGGER:
        return None
    data = strict_json.load(event.data, "announcement", max_bytes=MAX_EVENT)
    fields = strict_json.as_object(data, "announcement")
    queue, size = fields.get("queue"), fields.get("size", 0)
    if not isinstance(queue, str) or type(size) is not int or size < 0:
        raise InvalidRequest("announcement: a text `queue` and a number `size` expected")
    return EntityPath.parse(queue), size
