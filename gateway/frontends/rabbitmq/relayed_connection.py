"""
A client's connection to RabbitMQ through the gateway.

    wire    the client's frames pass to a connection of its own at the primary, in their order, and
            the primary's frames to the client. Each publish is kept until it's confirmed.
    away    that connection is lost: the publishes that are kept, and new ones, go through the pair.
            Requests are answered from what is remembered, or wait. Meanwhile another connection is
            dialled, logged in as the client did, and its channels are opened with their prefetch
            and consumers; then the client is on the wire again.

A connection with more at the primary, as a transaction, can't be away: once its publishes have
their verdicts it's closed with 320, as by a broker that shuts down (`connection-forced`,
AMQP 0-9-1, 1.1).
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from gateway.domain.errors import BrokerError
from gateway.frontends.rabbitmq.client_side import ClientSide, read_protocol_header
from gateway.frontends.rabbitmq.ending import Ending
from gateway.frontends.rabbitmq.greeting import Greeting
from gateway.frontends.rabbitmq.laying import Laying
from gateway.frontends.rabbitmq.primary_side import PrimarySide
from gateway.frontends.rabbitmq.publishes import Publishes
from gateway.frontends.rabbitmq.requests import Requests
from gateway.frontends.rabbitmq.session import ClientSession, RelayTarget
from gateway.frontends.rabbitmq.way_back import WayBack
from gateway.wire.rabbitmq.errors import FORCED
from gateway.wire.rabbitmq.frames import HEARTBEAT_FRAME
from gateway.wire.rabbitmq.relayed import PROTOCOL_HEADER

_MISSED: Final = 2.5  # heartbeat intervals without a byte: as RabbitMQ, between two and three
_LOOK: Final = 0.25  # seconds between two looks at what is late: a tenth of what is waited for


@attrs.define(eq=False)
class RelayedConnection:
    """Serves one client; `run` returns at its end."""

    _stream: trio.abc.Stream
    _target: RelayTarget
    _nursery: trio.Nursery  # of this connection alone
    _session: ClientSession = attrs.field(init=False)
    _publishes: Publishes = attrs.field(init=False)
    _ending: Ending = attrs.field(init=False)
    _greeting: Greeting = attrs.field(init=False)
    _client: ClientSide = attrs.field(init=False)
    _primary: PrimarySide = attrs.field(init=False)
    _requests: Requests = attrs.field(init=False)
    _way_back: WayBack = attrs.field(init=False)
    _laying: Laying = attrs.field(init=False)
    _is_in_doubt: bool = attrs.field(default=False, init=False)  # whether the primary is alive

    def __attrs_post_init__(self) -> None:
        session = self._session = ClientSession(self._target)
        publishes = self._publishes = Publishes(session, self._nursery)
        ending = self._ending = Ending(session, publishes)
        requests = self._requests = Requests(session, publishes, ending, self._nursery)
        self._greeting = Greeting(session, ending)
        self._client = ClientSide(
            self._stream, session, publishes, requests, ending, self._greeting
        )
        self._primary = PrimarySide(session, publishes, requests, ending)
        self._way_back = WayBack(session, publishes, requests, ending)
        self._laying = Laying(session, requests, ending)

    async def run(self) -> None:
        """Serve until one side ends the connection, or the gateway must."""
        try:
            if not await read_protocol_header(self._stream):
                return
            for part in (self._client.write, self._client.read, self._ending.run):
                self._nursery.start_soon(self._until_end_of, part)
            self._nursery.start_soon(self._client.begin)
            self._nursery.start_soon(self._close_when_refused)
            self._nursery.start_soon(self._live_upstream)
            await self._keep_time()
        finally:
            self._publishes.release_all()

    async def _until_end_of(self, part: Callable[[], Awaitable[None]]) -> None:
        await part()
        self._nursery.cancel_scope.cancel()

    async def _close_when_refused(self) -> None:
        await self._publishes.refused.wait()
        self._ending.close_away()

    async def _live_upstream(self) -> None:
        await self._relay_first()
        session = self._session
        if not session.login.is_done:
            if not self._greeting.is_possible:
                self._ending.finish_with()
                return
            self._greeting.begin()
            await session.login.done.wait()
        self._way_back.lose()
        while not session.is_ending:
            stream = await self._way_back.dial_again()
            await self._primary.relay(stream, self._laying.run)
            self._way_back.lose()

    async def _relay_first(self) -> None:
        """Relay to the primary, where the client itself logs in; returns if there is none."""
        stream = None
        with suppress(BrokerError), trio.move_on_after(self._first_wait):
            stream = await self._target.dial()
        if stream is not None:
            await self._primary.relay(stream, self._begin)

    @property
    def _first_wait(self) -> float:
        """Seconds to wait for a sign of the primary: as long as it takes, if it isn't known."""
        return self._target.slow if self._greeting.is_possible else math.inf

    async def _begin(self) -> None:
        self._session.to_primary.put(PROTOCOL_HEADER)
        self._session.is_on_wire = True
        await self._laying.keep()

    async def _keep_time(self) -> None:
        """Send heartbeats to both sides; give up who is silent, and publishes that are late."""
        began, session = trio.current_time(), self._session
        while True:
            await trio.sleep(_LOOK)
            now = trio.current_time()
            if session.login.is_done:
                self._keep_heartbeats(now, session.login.heartbeat)
                slow = self._target.slow
                is_watched = session.is_on_wire and self._primary.has_been_read(slow)
                if is_watched and (
                    self._publishes.is_silent(now, self._primary.heard)
                    or self._target.alarm.has_blocked(session, slow)
                ):
                    self._give_up()
                elif is_watched and not self._is_in_doubt and self._is_quiet(now):
                    self._nursery.start_soon(self._ask_for_life)
                self._requests.refuse_late(now)
                self._publishes.watch_alarm()
            elif now > began + self._target.login_timeout:
                self._nursery.cancel_scope.cancel()
            elif now > began + self._first_wait:
                self._primary.give_up()  # it hasn't said a word

    def _give_up(self) -> None:
        self._publishes.record_silence()
        self._primary.give_up()

    def _is_quiet(self, now: float) -> bool:
        """True if the primary says nothing, and owes an answer to a request."""
        moment = now - self._target.slow / 2
        return self._primary.heard <= moment and self._requests.has_waited_since(moment)

    async def _ask_for_life(self) -> None:
        """Give the primary up if it answers nobody: a request alone may take longer."""
        heard, self._is_in_doubt = self._primary.heard, True
        is_alive = await self._target.life.is_given()
        self._is_in_doubt = False
        if not is_alive and self._primary.heard == heard and self._session.is_on_wire:
            self._give_up()

    def _keep_heartbeats(self, now: float, interval: float) -> None:
        if not interval:
            return
        for outbox in (self._session.to_client, self._session.to_primary):
            if now - outbox.sent >= interval / 2 and not outbox.size:
                outbox.put(HEARTBEAT_FRAME)
        missed = _MISSED * interval
        if self._client.is_silent(missed):
            self._nursery.cancel_scope.cancel()
        if self._primary.has_been_read(missed) and now - self._primary.heard > missed:
            self._primary.give_up()

    def close_soon(self, text: str) -> None:
        """Close the connection once its publishes have their verdicts."""
        self._ending.close(FORCED, f"CONNECTION_FORCED - {text}")
