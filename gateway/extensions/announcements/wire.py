"""
A gateway's announcements to listeners, as server-sent events and as messages of a topic.

    event: open                                   no announcement is missed from now on
    data: {}

    event: trigger                                a message was enqueued, or soon will be
    data: {"queue": "orders", "size": 1024}       size in bytes; 0: unknown

A message has the same JSON as its body, and as its subject the queue in lower case, or `*`: any
queue may have new messages.
"""

import json
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message
from gateway.domain.topics.filters import (
    DEFAULT_RULE,
    MAX_EXPRESSION_LENGTH,
    Rule,
    SqlFilter,
    TrueFilter,
)
from gateway.frontends.admin.announcements import EVERYTHING, with_topics
from gateway.wire.http import strict_json
from gateway.wire.http.event_stream import MAX_EVENT, ServerEvent

OPEN: Final = ServerEvent(name="open", data="{}")
_TRIGGER: Final = "trigger"
_JSON: Final = "application/json"


def build_announcement(queue: EntityPath, size: int) -> ServerEvent:
    """Announce new messages of `size` bytes in the queue."""
    return ServerEvent(name=_TRIGGER, data=_text(queue, size))


def parse_announcement(event: ServerEvent) -> tuple[EntityPath, int] | None:
    """
    The queue and the bytes; None if the event isn't a trigger.

    Raises:
        InvalidRequest: the trigger is malformed.
    """
    if event.name != _TRIGGER:
        return None
    return _parse(event.data)


def build_hint(queue: EntityPath, size: int, time_to_live: timedelta) -> Message:
    """
    As `build_announcement`, also of `EVERYTHING`. A listener that is absent for `time_to_live`
    doesn't need the hint.
    """
    return Message(
        subject=queue.key,
        body=_text(queue, size).encode(),
        content_type=_JSON,
        time_to_live=time_to_live,
    )


def parse_hint(message: Message) -> tuple[EntityPath, int] | None:
    """As `parse_announcement`; None if the message isn't a gateway's."""
    if not isinstance(message.body, bytes):
        return None
    try:
        return _parse(message.body)
    except InvalidRequest:
        return None


def hint_rule(queues: Collection[EntityPath]) -> Rule:
    """
    The rule of a subscription to these queues, and to `EVERYTHING`. For too many queues it accepts
    all hints.
    """
    keys = sorted(queue.key for queue in with_topics(queues))
    texts = (f"'{key}'" for key in (EVERYTHING.key, *keys))
    expression = f"sys.Label IN ({', '.join(texts)})"
    if len(expression) > MAX_EXPRESSION_LENGTH:
        return Rule(name=DEFAULT_RULE, filter=TrueFilter())
    return Rule(name=DEFAULT_RULE, filter=SqlFilter(expression=expression))


def _text(queue: EntityPath, size: int) -> str:
    return json.dumps({"queue": queue.name, "size": size})


def _parse(text: str | bytes) -> tuple[EntityPath, int]:
    data = strict_json.load(text, "announcement", max_bytes=MAX_EVENT)
    fields = strict_json.as_object(data, "announcement")
    queue, size = fields.get("queue"), fields.get("size", 0)
    if not isinstance(queue, str) or type(size) is not int or size < 0:
        raise InvalidRequest("announcement: a text `queue` and a number `size` expected")
    return EVERYTHING if queue == EVERYTHING.name else EntityPath.parse(queue), size
