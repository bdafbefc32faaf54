"""Keeps an audit log of the calls that change something, whatever their outcome."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import attrs
import trio

from gateway.domain.access import Right
from gateway.domain.errors import BrokerError
from gateway.frontends.admin.operators import UNKNOWN, operator_of
from gateway.frontends.auth import Authorizer
from gateway.net.visits import current_visit
from gateway.ports import WallClock
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.control_call import PREFIX, ControlCall

LONGEST_ORDER: Final = 64 * 1024  # bytes; a longer order is refused anyway, or lists entities
LONGEST_CALL: Final = 100  # characters of a path: clients without a key write lines, too
LONGEST_NOTE: Final = 10.0  # seconds: for one line on a busy disk, while the process ends
# The limits for calls without a name, that is without valid credentials: the number of calls that
# have a line in each `WINDOW`, and the number of hosts that are named for the others, which are
# only counted.
WINDOW: Final = timedelta(minutes=1)
MOST_UNNAMED: Final = 10
MOST_HOSTS: Final = 10
OTHERS: Final = "others"


class AuditNotes(Protocol):
    """Writes entries, as `gateway.telemetry.audit.AuditLog` does."""

    async def record(self, entry: Mapping[str, Any]) -> None: ...


@attrs.define(eq=False)
class Unnamed:
    """
    Calls without a name in the present window. Any client may make them, as often as it likes.
    """

    _began: datetime | None = attrs.field(default=None, init=False)
    _noted: int = attrs.field(default=0, init=False)
    _counted: Counter[str] = attrs.field(factory=Counter, init=False)  # by host

    def has_line(self, peer: str) -> bool:
        """Count the call; False if others of this window have taken all lines."""
        if self._noted < MOST_UNNAMED:
            self._noted += 1
            return True
        host = peer.rpartition(":")[0] or peer
        known = host in self._counted or len(self._counted) < MOST_HOSTS
        self._counted[host if known else OTHERS] += 1
        return False

    def over(self, now: datetime) -> dict[str, Any] | None:
        """The entry for the counted calls of a window that has ended; None: no call was counted."""
        if self._began is None:
            self._began = now
        if timedelta() <= now - self._began < WINDOW:  # a clock may be set back
            return None
        began, counted = self._began, self._counted
        self._began, self._noted, self._counted = now, 0, Counter()
        if not counted:
            return None
        return {
            "at": began.isoformat(),
            "seconds": round((now - began).total_seconds(), 3),
            "operator": UNKNOWN,
            "repeated": counted.total(),
            "peers": dict(counted),
        }


@attrs.frozen(kw_only=True)
class Audited:
    """A front end whose calls of operators are noted before their answers are sent."""

    handler: Callable[[Request], Awaitable[Response]]
    authorizer: Authorizer
    clock: WallClock
    notes: AuditNotes
    calls: Sequence[ControlCall[Any, Any]]
    unnamed: Unnamed = attrs.field(factory=Unnamed)

    async def handle(self, request: Request) -> Response:
        """The answer of `handler`."""
        if not self._is_audited(request):
            return await self.handler(request)
        began = self.clock()
        try:
            response = await self.handler(request)
        except BaseException as error:  # cut off by the end of the process, or a bug
            with trio.move_on_after(LONGEST_NOTE, shield=True):
                await self._record(request, began, {"status": None, "error": type(error).__name__})
            raise
        answer = _as_object(response.body) or {}
        call = self._call(request)
        names = () if call is None else call.audited
        known: dict[str, Any] = {name: answer[name] for name in (*names, "error") if name in answer}
        await self._record(request, began, {"status": response.status, **known})
        return response

    async def _record(self, request: Request, began: datetime, outcome: Mapping[str, Any]) -> None:
        ended = self.clock()
        name, peer = self._name(request), current_visit().peer or UNKNOWN
        if (repeated := self.unnamed.over(ended)) is not None:
            await self.notes.record(repeated)
        if name == UNKNOWN and not self.unnamed.has_line(peer):
            return
        entry: dict[str, Any] = {
            "at": began.isoformat(),
            "seconds": round((ended - began).total_seconds(), 3),
            "operator": name,
            "peer": peer,
            "call": request.path[:LONGEST_CALL],
            "order": _order(request.body),
            **outcome,
        }
        await self.notes.record(entry)

    def _call(self, request: Request) -> ControlCall[Any, Any] | None:
        return next((each for each in self.calls if each.is_at(request.method, request.path)), None)

    def _is_audited(self, request: Request) -> bool:
        """True for each call that may change something, also for one that doesn't exist."""
        if request.method != "POST":
            return False
        return request.path.startswith(PREFIX) or self._call(request) is not None

    def _name(self, request: Request) -> str:
        try:
            call = self._call(request)
            right = Right.MANAGE if call is None else call.least_right
            return operator_of(self.authorizer, request, right).name
        except BrokerError:
            return UNKNOWN


def _as_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object; None: it isn't one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _order(body: bytes) -> object:
    """The order as it was given; a text if it is no JSON object."""
    if not body.strip():
        return {}
    if len(body) > LONGEST_ORDER:
        return f"{len(body)} bytes"
    order = _as_object(body)
    return body.decode(errors="replace") if order is None else order
