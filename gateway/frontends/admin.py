"""
What operators and their tools ask a gateway: how it is, and how much work a queue has.

    GET /livez, /readyz            whether it lives; /status and /metrics: how it is (`figures`)
    GET /scale/ENTITY              depth and age as JSON, as KEDA's metrics-api scaler reads them
    GET /triggers?queues=A,B       what comes to these queues, as events (`wire/announcements`)
    POST /triggers/QUEUE?size=N    tells the listeners of a queue that something has come to it

`/livez` and `/readyz` are for anybody. The others take HTTP Basic, with name and key of an access
policy, or a token that Service Bus would take. On this machine, where no policy is configured, they
need neither.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import attrs
import trio
from attrs import validators

from gateway.capabilities import Peeks
from gateway.domain.access import Right
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus
from gateway.domain.errors import (
    BrokerError,
    InvalidRequest,
    NotSupported,
    OutcomeUnknown,
)
from gateway.frontends.announcements import Announcements
from gateway.frontends.auth import Authorizer
from gateway.frontends.figures import FiguresFrontend
from gateway.frontends.operators import check_right, health, json_answer, refused
from gateway.ports import Broker, WallClock
from gateway.wire.announcements import OPEN, build_announcement
from gateway.wire.event_stream import COMMENT, EVENT_STREAM, build_event
from gateway.wire.http import Headers, Request, Response
from gateway.wire.scale import Figures, build_figures

_SCALE: Final = "/scale/"
_TRIGGERS: Final = "/triggers"
_MOST_QUEUES: Final = 1000  # of one stream
_LARGEST: Final = 2**63 - 1  # bytes
_READS: Final = frozenset({"GET", "HEAD"})
# Nobody receives from those, however many listeners there are.
_GIVES_NOTHING: Final = frozenset({EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED})


@attrs.frozen(kw_only=True)
class AdminOptions:
    """Times are seconds."""

    answer_timeout: float = attrs.field(default=5.0, validator=validators.gt(0.0))
    # A stream says nothing for no longer than that, so that its reader knows that it is there.
    keep_alive: float = attrs.field(default=15.0, validator=validators.gt(0.0))


@attrs.define(eq=False, kw_only=True)
class AdminFrontend:
    """
    Answers requests of operators, orchestrators and scalers.

    `handle` and `refuse` are what `gateway.net.http_server.HttpServer` asks for.
    """

    broker: Broker
    authorizer: Authorizer
    wall_clock: WallClock
    figures: FiguresFrontend | None = None
    announcements: Announcements = attrs.field(factory=Announcements)
    options: AdminOptions = attrs.field(factory=AdminOptions)
    draining: trio.Event = attrs.field(factory=trio.Event)  # once set, it isn't ready any more

    async def handle(self, request: Request) -> Response:
        """
        Answer one request; every `BrokerError` has become a response.

        Nothing is changed in a namespace; who waits for triggers may be woken.
        """
        await trio.lowlevel.checkpoint()
        try:
            if request.method in _READS:
                return await self._read(request)
            if request.method == "POST" and request.path.startswith(f"{_TRIGGERS}/"):
                return self._trigger(request)
        except BrokerError as error:
            return refused(error)
        return self.refuse(405, f"{request.method} is not for {request.path}")

    def refuse(self, status: int, text: str) -> Response:
        """The answer to what is no request that is known here, or none at all."""
        return json_answer(status, {"error": text})

    async def _read(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        if request.path.startswith(_SCALE):
            return json_answer(200, await self._scale(request))
        if request.path == _TRIGGERS:
            return self._stream(request)
        answer = health(request, self.draining)
        if answer is None and self.figures is not None:
            answer = await self.figures.answer(request)
        return answer or self.refuse(404, f"there is no {request.path}")

    async def _scale(self, request: Request) -> Mapping[str, object]:
        entity = EntityPath.parse(request.path.removeprefix(_SCALE))
        self._check(request, entity, Right.LISTEN)
        with trio.move_on_after(self.options.answer_timeout):
            info = await self.broker.inspect(entity)
            return build_figures(_figures(info, await self._age(info)))
        raise OutcomeUnknown(f"{entity}: no answer from the namespace in time")

    def _trigger(self, request: Request) -> Response:
        queue = EntityPath.parse(request.path.removeprefix(f"{_TRIGGERS}/"))
        self._check(request, queue, Right.SEND)
        text = request.query.get("size", "0")
        if not text.isascii() or not text.isdigit() or int(text[:20]) > _LARGEST:
            raise InvalidRequest(f"size: 0 to {_LARGEST} bytes expected, got {text!r:.40}")
        self.announcements.publish(queue, int(text))
        return json_answer(202, {"queue": queue.name})

    def _stream(self, request: Request) -> Response:
        names = request.query.get("queues", "").split(",")
        if len(names) > _MOST_QUEUES:
            raise InvalidRequest(f"queues: up to {_MOST_QUEUES} expected, got {len(names)}")
        queues = [EntityPath.parse(name) for name in names]
        for queue in queues:
            self._check(request, queue, Right.LISTEN)
        headers = Headers.of({"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        return Response(status=200, headers=headers, parts=self._events(queues))

    async def _events(self, queues: Sequence[EntityPath]) -> AsyncGenerator[bytes, None]:
        await trio.lowlevel.checkpoint()
        with self.announcements.subscribe(queues) as stream:
            yield build_event(OPEN)
            while True:
                came: Mapping[EntityPath, int] = {}
                with trio.move_on_after(self.options.keep_alive):
                    came = await stream.next()
                events = (build_event(build_announcement(*each)) for each in came.items())
                yield b"".join(events) or COMMENT

    def _check(self, request: Request, entity: EntityPath, right: Right) -> None:
        check_right(self.authorizer, request, right, entity)

    async def _age(self, info: EntityInfo) -> float | None:
        """Seconds since the oldest message came; None where nobody can tell."""
        await trio.lowlevel.checkpoint()
        if not isinstance(self.broker, Peeks):
            return None
        try:
            oldest = await self.broker.peek(info.path, limit=1)
        except NotSupported:
            return None
        if not oldest:
            return 0.0
        enqueued = oldest[0].enqueued
        if enqueued is None:
            return None
        return max(0.0, (self.wall_clock() - enqueued).total_seconds())


def _figures(info: EntityInfo, age: float | None) -> Figures:
    """
    Of an entity that gives nothing the depth is 0: more listeners would find no more.

    `depth` is missing where the namespace can't tell, so that a scaler keeps what it had.
    """
    mute = info.properties.status in _GIVES_NOTHING
    return Figures(
        entity=info.path.name,
        status=info.properties.status.value,
        depth=0 if mute else info.active,
        age=0.0 if mute else age,
    )
