"""
The events of the process as server-sent events (WHATWG HTML, 9.2).

    GET /events                      all events that are kept, then each as it happens
    GET /events?recent=20            the last 20, then each as it happens
    GET /events?follow=false         ends after those that are kept

`Last-Event-ID` resumes after that event. A reader that missed some gets `event: gap` first, with
their number (null: the events were another process's).

The stream ends when its client has lost the right to read it, before anything else is written.
"""

import json
from collections.abc import AsyncGenerator
from typing import Final, Protocol

import attrs
import trio

from gateway.changes import Changes
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError, InvalidRequest
from gateway.frontends.admin.operators import check_right
from gateway.frontends.auth import Authorizer
from gateway.wire.http.event_stream import COMMENT, EVENT_STREAM, ServerEvent, build_event
from gateway.wire.http.messages import Headers, Request, Response

PATH: Final = "/events"
GAP: Final = "gap"
KEEP_ALIVE: Final = 15.0  # seconds: as HTML's specification advises (9.2.7, "Authoring notes")
_MOST_DIGITS: Final = 18  # of the number of an event
_AT_ONCE: Final = 100  # events in one write
# Seconds between two writes of new events to one reader, so that many readers take no time from
# sends: the first of several events is written at once, and the others together.
BETWEEN: Final = 0.5


class RecentSource(Protocol):
    """The last events, as `gateway.telemetry.recent_events.RecentEvents` keeps them."""

    changes: Changes

    @property
    def run(self) -> str: ...

    @property
    def last(self) -> int: ...

    @property
    def before_first(self) -> int: ...

    def after(self, number: int, most: int) -> list[tuple[int, str, str]]: ...


@attrs.frozen
class EventsFrontend:
    """Answers `GET /events`. The front end keeps a position for each reader, and nothing else."""

    authorizer: Authorizer
    recent: RecentSource
    keep_alive: float = KEEP_ALIVE  # a stream is never silent for longer

    def answer(self, request: Request) -> Response | None:
        """
        The stream of events; None if the request is for another path.

        Raises:
            NotAuthorized: the client may not read the status.
            InvalidRequest: `recent` isn't a number, or `follow` neither true nor false.
        """
        if request.path != PATH:
            return None
        self._check(request)
        follows = request.query.get("follow", "true")
        if follows not in {"true", "false"}:
            raise InvalidRequest("follow: true or false expected")
        resumed = request.headers.get("Last-Event-ID")
        missed, position = self._resume(resumed) if resumed else (0, self._start(request))
        headers = Headers.of({"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        if follows == "true":
            parts = self._parts(request, position, missed)
            return Response(status=200, headers=headers, parts=parts)
        found, _ = self._kept(position, missed, most=self.recent.last)
        return Response(status=200, headers=headers, body=COMMENT + found)

    def _start(self, request: Request) -> int:
        text = request.query.get("recent")
        if text is None:
            return self.recent.before_first
        if not text.isascii() or not text.isdigit():
            raise InvalidRequest(f"recent: a number of events expected, got {text!r:.40}")
        return max(self.recent.before_first, self.recent.last - int(text[:9]))

    def _resume(self, text: str) -> tuple[int | None, int]:
        """
        The number of events that the reader has certainly missed (None: unknown), and its position.
        """
        run, _, number = text.partition("-")
        is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
        known = is_number and int(number) <= self.recent.last
        if run != self.recent.run or not known:
            return None, self.recent.before_first
        return 0, int(number)

    def _check(self, request: Request) -> None:
        check_right(self.authorizer, request, Right.LISTEN, None)

    async def _parts(
        self, request: Request, position: int, missed: int | None
    ) -> AsyncGenerator[bytes, None]:
        yield COMMENT
        while True:
            try:
                self._check(request)
            except BrokerError:
                return
            seen = self.recent.changes.version
            found, position = self._kept(position, missed, most=_AT_ONCE)
            missed = 0
            if found:
                has_all = position == self.recent.last
                yield found
                if has_all:
                    await trio.sleep(BETWEEN)
                continue
            with trio.move_on_after(self.keep_alive) as scope:
                await self.recent.changes.wait(seen)
            if scope.cancelled_caught:
                yield COMMENT

    def _kept(self, position: int, missed: int | None, *, most: int) -> tuple[bytes, int]:
        """Encode at most `most` events after that position; return the new position, too."""
        lost = max(0, self.recent.before_first - position)
        gap = self._gap(None if missed is None else lost) if lost or missed is None else b""
        position = max(position, self.recent.before_first)
        found = self.recent.after(position, most)
        events = [
            build_event(ServerEvent(name=name, data=data, id=f"{self.recent.run}-{number}"))
            for number, name, data in found
        ]
        return gap + b"".join(events), found[-1][0] if found else position

    def _gap(self, missed: int | None) -> bytes:
        return build_event(ServerEvent(name=GAP, data=json.dumps({"event": GAP, "missed": missed})))
