"""A gateway's announcements reach the listeners of another process: over real sockets."""

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import attrs
import pytest
import trio

from gateway.demo.ports import free_port
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Event
from gateway.extensions.announcements.events import TriggersLost, TriggersRegained
from gateway.extensions.announcements.trigger_feed import TriggerFeed
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.listening.triggers import Triggers
from gateway.net.http.server import HttpServer
from gateway.net.server_address import ServerAddress
from gateway.store.local.memory import MemoryBroker

ORDERS = EntityPath("orders")
POLICY = AccessPolicy(name="listener", keys=("a key of sixteen",), rights=frozenset({Right.LISTEN}))
AUTHORIZATION = "Basic bGlzdGVuZXI6YSBrZXkgb2Ygc2l4dGVlbg=="


def now() -> datetime:
    return datetime.now(UTC)


@attrs.define(eq=False)
class Gateway:
    """The admin endpoint of a gateway, which can be cut off and come back at the same port."""

    nursery: trio.Nursery
    frontend: AdminFrontend
    port: int = attrs.field(factory=free_port)  # of no other process while it's closed
    _scope: trio.CancelScope | None = None

    async def start(self) -> None:
        server = HttpServer(
            handler=self.frontend.handle, error_body=self.frontend.refuse, wall_clock=now
        )

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope() as self._scope:
                listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
                async with trio.open_nursery() as connections:
                    task_status.started()
                    await trio.serve_listeners(
                        server.serve_connection, listeners, handler_nursery=connections
                    )

        await self.nursery.start(serve)

    def stop(self) -> None:
        assert self._scope is not None
        self._scope.cancel()


@attrs.define(eq=False)
class Events:
    """An observer that one can wait for."""

    seen: list[Event] = attrs.field(factory=list)
    _came: trio.Event = attrs.field(factory=trio.Event)

    def report(self, event: Event) -> None:
        self.seen.append(event)
        self._came.set()
        self._came = trio.Event()

    async def wait_for(self, kind: type[Event], times: int = 1) -> None:
        while sum(isinstance(event, kind) for event in self.seen) < times:
            await self._came.wait()


@pytest.fixture
async def gateway(nursery: trio.Nursery) -> Gateway:
    frontend = AdminFrontend(
        broker=MemoryBroker(now, random.Random(1)),
        authorizer=Authorizer([POLICY], wall_clock=now),
        wall_clock=now,
    )
    gateway = Gateway(nursery, frontend)
    await gateway.start()
    return gateway


@attrs.define(eq=False)
class Feed:
    triggers: Triggers
    events: Events


@pytest.fixture
async def feed(gateway: Gateway, nursery: trio.Nursery) -> Feed:
    feed = Feed(Triggers(), Events())
    await nursery.start(_feed(gateway, feed, AUTHORIZATION).run)
    return feed


def _feed(gateway: Gateway, feed: Feed, authorization: str | None) -> TriggerFeed:
    return TriggerFeed(
        place=ServerAddress(host="127.0.0.1", port=gateway.port),
        authorization=lambda: authorization,
        queues=[ORDERS],
        triggers=feed.triggers,
        account="east",
        observer=feed.events,
        rng=random.Random(1),
    )


async def within(seconds: float, wait: Callable[[], Awaitable[None]]) -> None:
    with trio.fail_after(seconds):
        await wait()


async def test_an_announcement_wakes_the_listeners_of_its_queue(
    gateway: Gateway, feed: Feed
) -> None:
    await within(30, lambda: feed.events.wait_for(TriggersRegained))
    with feed.triggers.subscribe("east", ORDERS) as notifier:
        seen = notifier.notifications
        gateway.frontend.announcements.publish(ORDERS, 10)

        await within(30, lambda: notifier.wait(seen))

    assert feed.triggers.is_connected


async def test_without_a_gateway_listeners_poll_until_it_is_back(
    gateway: Gateway, feed: Feed
) -> None:
    await within(30, lambda: feed.events.wait_for(TriggersRegained))

    gateway.stop()
    await within(30, lambda: feed.events.wait_for(TriggersLost))
    lost = feed.triggers.is_connected
    await gateway.start()
    await within(60, lambda: feed.events.wait_for(TriggersRegained, times=2))

    assert not lost
    assert feed.triggers.is_connected


async def test_a_listener_that_is_refused_polls_and_says_why(
    gateway: Gateway, nursery: trio.Nursery
) -> None:
    refused = Feed(Triggers(), Events())
    await nursery.start(_feed(gateway, refused, None).run)

    await within(30, lambda: refused.events.wait_for(TriggersLost))

    (event,) = refused.events.seen
    assert isinstance(event, TriggersLost)
    assert event.reason == "no token: an Authorization header is expected"
    assert not refused.triggers.is_connected
