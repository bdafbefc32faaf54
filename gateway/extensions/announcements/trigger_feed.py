"""Brings a gateway's announcements to the listeners of this process, by a stream of events."""

import random
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError
from gateway.extensions.announcements.events import TriggersLost, TriggersRegained
from gateway.extensions.announcements.wire import OPEN, parse_announcement
from gateway.listening.triggers import Trigger, Triggers
from gateway.net.http.event_stream import EventStream, open_events
from gateway.net.server_address import ServerAddress
from gateway.ports import Observer
from gateway.wire.http.messages import Headers, Request
from gateway.wire.pairgate.scale import query_texts

CONNECT_SECONDS: Final = 10.0  # as for other operations of a listener
SILENCE_SECONDS: Final = 45.0  # a third of that is a gateway's longest silence
RETRY: Final = Backoff(first=0.5, cap=30.0)


@attrs.define(eq=False, kw_only=True)
class TriggerFeed:
    """
    A stream of one gateway's announcements. While the stream is broken, its listeners poll. Several
    gateways before the same namespace have a feed each, all with the same `triggers`.

    `authorization` returns the value of that header; None if the gateway needs none. It is called
    for each stream, because a token may have been renewed; a `BrokerError` counts as a broken
    stream.
    """

    place: ServerAddress
    authorization: Callable[[], str | None]
    queues: Sequence[EntityPath]
    triggers: Triggers
    account: str
    observer: Observer
    rng: random.Random
    part: int = 0  # of several streams for more queues than one request can name
    _failures: int = attrs.field(default=0, init=False)  # in a row
    _is_open: bool = attrs.field(default=False, init=False)

    @property
    def channel(self) -> str:
        return f"{self.place} #{self.part + 1}" if self.part else str(self.place)

    def parts(self) -> Sequence["TriggerFeed"]:
        """As many feeds as it takes to name all queues; they run instead of this one."""
        queries = enumerate(query_texts(self.queues))
        return [attrs.evolve(self, queues=queues, part=part) for part, (_, queues) in queries]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled, and reconnect whenever the stream breaks."""
        self.triggers.lose(self.channel)
        task_status.started()
        while True:
            try:
                async with open_events(
                    self.place,
                    self._request(),
                    connect_timeout=CONNECT_SECONDS,
                    silence=SILENCE_SECONDS,
                ) as events:
                    await self._follow(events)
            except BrokerError as error:
                self._record_loss(error)
            await trio.sleep(RETRY.delay(self._failures, self.rng))

    async def _follow(self, events: EventStream) -> None:
        """Publish the events; ends only with an error."""
        while True:
            event = await events.next()
            announced = parse_announcement(event)
            if announced is not None:
                queue, size = announced
                self.triggers.publish(Trigger(account=self.account, queue=queue, size=size))
            elif event == OPEN and not self._is_open:
                self._failures, self._is_open = 0, True
                self.triggers.regain(self.channel)
                self.observer.report(TriggersRegained(gateway=self.channel))

    def _record_loss(self, error: BrokerError) -> None:
        """Report the first of consecutive failures."""
        self._failures += 1
        if self._is_open:
            self._is_open = False
            self.triggers.lose(self.channel)
        if self._failures == 1:
            self.observer.report(TriggersLost(gateway=self.channel, reason=str(error)))

    def _request(self) -> Request:
        [(query, _)] = query_texts(self.queues)
        text = self.authorization()
        fields = {} if text is None else {"Authorization": text}
        return Request(method="GET", target=f"/triggers?{query}", headers=Headers.of(fields))
