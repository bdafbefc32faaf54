"""Follows the events of a running gateway, across its restarts."""

from collections.abc import Callable
from typing import Final

import trio

from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import AdminEndpoint, admin_here
from gateway.app.operations.asking import failure_of, fetch, named
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import BrokerError
from gateway.net.http.event_stream import open_events
from gateway.wire.http.event_stream import EventParser, ServerEvent
from gateway.wire.http.messages import Headers, Request

CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 45.0  # the gateway sends something every 15 s
RETRY_SECONDS: Final = 1.0

Show = Callable[[ServerEvent], None]


async def last_events(config: Config, choice: AdminChoice, recent: int, show: Show) -> None:
    """
    Show the last events that the gateway has kept, at most `recent`.

    Raises:
        Failure: as `fetch`.
    """
    target = f"/events?recent={recent}&follow=false"
    _, found = await fetch(config, choice, target, EventParser().feed)
    for event in found:
        show(event)


async def follow_events(
    config: Config, choice: AdminChoice, recent: int, show: Show, lost: Callable[[str], None]
) -> None:
    """
    Until cancelled, show the last events, at most `recent`, and each further one.

    `lost` is called with the reason each time the gateway is lost; the events since then, as far as
    the gateway kept them, are shown as soon as it answers again.

    Raises:
        Failure: no gateway runs at the start, or it refused.
    """
    endpoint = await admin_here(config, choice)
    last = ""

    def remember(event: ServerEvent) -> None:
        nonlocal last
        last = event.id or last
        show(event)

    while True:
        try:
            await _follow(endpoint, recent, last, remember)
        except BrokerError as error:
            if not error.counts_as_outage:
                raise failure_of(endpoint, error) from error
            lost(named(endpoint, str(error)))
            await trio.sleep(RETRY_SECONDS)


async def _follow(endpoint: AdminEndpoint, recent: int, last: str, show: Show) -> None:
    authorization = endpoint.authorization(Right.LISTEN)
    fields = {} if authorization is None else {"Authorization": authorization}
    if last:
        fields["Last-Event-ID"] = last
    request = Request(method="GET", target=f"/events?recent={recent}", headers=Headers.of(fields))
    async with open_events(
        endpoint.place, request, connect_timeout=CONNECT_SECONDS, silence=SILENCE_SECONDS
    ) as events:
        while True:
            show(await events.next())
