"""
Announcements at the endpoint `admin` of a gateway.

    GET /triggers?queues=A,B       new messages in these queues as events (`wire`)
    POST /triggers/QUEUE?size=N    tells the listeners of a queue that it has a new message
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import cycle
from typing import ClassVar, Final

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.extensions.announcements.wire import OPEN, build_announcement
from gateway.frontends.admin.announcements import Announcements
from gateway.frontends.admin.openapi import (
    ALWAYS,
    TEXT,
    PathOperation,
    in_path,
    in_query,
    object_schema,
)
from gateway.frontends.admin.operators import JSON, check_right, json_answer, queues_of
from gateway.frontends.auth import Authorizer
from gateway.frontends.options import AdminOptions
from gateway.wire.http.event_stream import COMMENT, EVENT_STREAM, build_event
from gateway.wire.http.messages import Headers, Request, Response

_LARGEST: Final = 2**63 - 1  # bytes; the most of a signed 64-bit number
_MOST_DIGITS: Final = 20  # one more than such a number has


@attrs.define(eq=False)
class TriggerRoutes:
    """Implements `AdminRoutes`. A POST wakes readers of triggers, and changes nothing else."""

    prefix: ClassVar[str] = "/triggers"

    _announcements: Announcements
    _authorizer: Authorizer
    _options: AdminOptions

    @staticmethod
    def operations() -> Iterator[PathOperation]:
        queues = {**in_query("queues", "separated by commas", TEXT), "required": True}
        yield PathOperation(
            path="/triggers",
            summary="new messages in these queues, as server-sent events",
            answers={200: {"text/event-stream": TEXT}},
            right="Listen on these queues",
            refusals=(*ALWAYS, 404, 501),
            parameters=(queues,),
        )
        size = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
        yield PathOperation(
            path="/triggers/{queue}",
            method="post",
            summary="tells the listeners of a queue that it has a new message",
            answers={202: {JSON: object_schema({"queue": TEXT})}},
            right="Send on the queue",
            refusals=(*ALWAYS, 404, 413, 501),
            parameters=(in_path("queue"), in_query("size", "of the message in bytes", size)),
        )

    def takes(self, request: Request) -> bool:
        if request.method == "POST":
            return request.path.startswith(f"{self.prefix}/")
        return request.method in {"GET", "HEAD"} and request.path == self.prefix

    def check_head(self, request: Request) -> None:
        check_right(self._authorizer, request, Right.SEND, self._queue_of(request))

    async def answer(self, request: Request) -> Response:
        return self._trigger(request) if request.method == "POST" else self._stream(request)

    def _trigger(self, request: Request) -> Response:
        queue = self._queue_of(request)
        check_right(self._authorizer, request, Right.SEND, queue)
        text = request.query.get("size", "0")
        is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
        if not is_number or int(text) > _LARGEST:
            raise InvalidRequest(f"size: 0 to {_LARGEST} bytes expected, got {text!r:.40}")
        self._announcements.publish(queue, int(text))
        return json_answer(202, {"queue": queue.name})

    def _queue_of(self, request: Request) -> EntityPath:
        return EntityPath.parse(request.path.removeprefix(f"{self.prefix}/"))

    def _stream(self, request: Request) -> Response:
        queues = queues_of(request, self._authorizer)
        headers = Headers.of({"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        return Response(status=200, headers=headers, parts=self._events(request, queues))

    async def _events(
        self, request: Request, queues: Sequence[EntityPath]
    ) -> AsyncGenerator[bytes, None]:
        """
        The announcements, until the client has lost the right to listen to a queue that would be
        announced, or to the one that is looked at while none is: a stream may name a thousand.
        """
        one_by_one = cycle(queues)
        with self._announcements.subscribe(queues) as stream:
            yield build_event(OPEN)
            while True:
                came: Mapping[EntityPath, int] = {}
                with trio.move_on_after(self._options.keep_alive):
                    came = await stream.next()
                try:
                    for queue in came or (next(one_by_one),):
                        check_right(self._authorizer, request, Right.LISTEN, queue)
                except BrokerError:
                    return
                events = (build_event(build_announcement(*each)) for each in came.items())
                yield b"".join(events) or COMMENT
