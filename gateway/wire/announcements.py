"""
What a gateway announces to listeners, as server-sent events and as messages of a topic.

    event: open                                   from now on nothing is missed
    data: {}

    event: trigger                                something has come, or will soon
    data: {"queue": "orders", "size": 1024}       size in bytes; 0: nobody knows

A message has the same JSON as its body, and as its subject the queue in lower case, or `*`:
something may have come to any of them.
"""

import json
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.message import Message
from gateway.domain.rules import DEFAULT_RULE, MAX_EXPRESSION_LENGTH, Rule, SqlFilter, TrueFilter
from gateway.wire import strict_json
from gateway.wire.event_stream import MAX_EVENT, ServerEvent

OPEN: Final = ServerEvent(name="open", data="{}")
EVERYTHING: Final = EntityPath("*")  # which no queue is called
MOST: Final = 100  # queues, of which one reader is told each by itself
_TRIGGER: Final = "trigger"
_JSON: Final = "application/json"


def build_announcement(queue: EntityPath, size: int) -> ServerEvent:
    """Say that so many bytes have come to that queue."""
    return ServerEvent(name=_TRIGGER, data=_text(queue, size))


def parse_announcement(event: ServerEvent) -> tuple[EntityPath, int] | None:
    """
    The queue and the bytes; None where the event says something else.

    Raises:
        InvalidRequest: the event is an announcement that can't be read.
    """
    if event.name != _TRIGGER:
        return None
    return _parse(event.data)


def build_hint(queue: EntityPath, size: int, time_to_live: timedelta) -> Message:
    """As `build_announcement`, also of `EVERYTHING`. Who isn't there in that time needs it not."""
    return Message(
        subject=queue.key,
        body=_text(queue, size).encode(),
        content_type=_JSON,
        time_to_live=time_to_live,
    )


def parse_hint(message: Message) -> tuple[EntityPath, int] | None:
    """As `parse_announcement`; None where the message is none of ours."""
    if not isinstance(message.body, bytes):
        return None
    try:
        return _parse(message.body)
    except InvalidRequest:
        return None


def hint_rule(queues: Collection[EntityPath]) -> Rule:
    """Of a subscription for these queues, and for everything. Of too many it lets all pass."""
    keys = sorted(queue.key for queue in with_topics(queues))
    texts = (f"'{key}'" for key in (EVERYTHING.key, *keys))
    expression = f"sys.Label IN ({', '.join(texts)})"
    if len(expression) > MAX_EXPRESSION_LENGTH:
        return Rule(name=DEFAULT_RULE, filter=TrueFilter())
    return Rule(name=DEFAULT_RULE, filter=SqlFilter(expression=expression))


def with_topics(queues: Iterable[EntityPath]) -> frozenset[EntityPath]:
    """
    These and the topics of those that are subscriptions: what is sent to a topic is announced by
    the topic's name where nobody here knows which subscriptions it goes to.
    """
    return frozenset(path for queue in queues for path in (queue, queue.topic))


def _text(queue: EntityPath, size: int) -> str:
    return json.dumps({"queue": queue.name, "size": size})


def _parse(text: str | bytes) -> tuple[EntityPath, int]:
    data = strict_json.load(text, "announcement", max_bytes=MAX_EVENT)
    fields = strict_json.as_object(data, "announcement")
    queue, size = fields.get("queue"), fields.get("size", 0)
    if not isinstance(queue, str) or type(size) is not int or size < 0:
        raise InvalidRequest("announcement: a text `queue` and a number `size` expected")
    return EVERYTHING if queue == EVERYTHING.name else EntityPath.parse(queue), size
