"""
`pairgate listen`: a listener as a process, and the order in which it ends.

    namespace   through the gateway that runs here, or straight in           closed last
    └ handler   the connections to its endpoint
      └ feed    what the gateway announces                                   cancelled
        └ listener  drained: takes nothing more, finishes, settles           ends first
"""

from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.handlers import HandlerChoice, open_handler
from gateway.app.outside import Outside
from gateway.app.parts import stores_among
from gateway.app.serving import watch_signals, watch_store
from gateway.app.targets import Target, admin_authorization, find_admin, open_target
from gateway.app.trigger_feed import TriggerFeed
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.access import Right
from gateway.domain.errors import InvalidRequest
from gateway.domain.events import Doubtful, Draining, Started
from gateway.domain.message import Message
from gateway.listener.items import RAW
from gateway.listener.listener import QueueListener
from gateway.listener.options import ListenerOptions
from gateway.listener.triggers import Triggers
from gateway.net.dialing import Place
from gateway.net.tls import client_context

ADMIN_PORT = 9640


@attrs.frozen(kw_only=True)
class Wanted:
    """What the command line says; `options` are those of the file, and its own."""

    queues: str  # as "urgent:8 bulk:2"
    handler: HandlerChoice
    options: ListenerOptions
    triggers: str | None = None  # the URL of a gateway's admin endpoint; None: the one found here
    namespace: str | None = None
    port_offset: int = 0


async def listen(loaded: Loaded, outside: Outside, wanted: Wanted) -> None:
    """
    Run the handler for each message until SIGTERM or SIGINT; then finish what runs, settle it and
    return. A second one cuts what still runs: its messages come again.

    Raises:
        Failure: the namespace or the handler can't be opened, or a store failed.
    """
    for warning in loaded.warnings:
        outside.observer.report(Doubtful(text=warning))
    failures: list[Failure] = []
    async with AsyncExitStack() as stack:
        target = await open_target(
            stack,
            loaded.config,
            outside,
            right=Right.LISTEN,
            namespace=wanted.namespace,
            port_offset=wanted.port_offset,
        )
        handle = await open_handler(
            stack,
            wanted.handler,
            parallel=wanted.options.parallel,
            clock=outside.now,
        )
        triggers = Triggers(is_connected=False)
        try:
            listener = QueueListener(
                broker=target.broker,
                queues=wanted.queues,
                format=RAW,
                handle=handle,
                clock=outside.now,
                rng=outside.rng("listener"),
                options=wanted.options,
                observer=outside.observer,
                triggers=triggers,
            )
        except InvalidRequest as error:
            raise Failure(str(error), ExitCode.WRONG) from error
        feed = await _make_feed(loaded.config, outside, wanted, target, listener, triggers)
        await _run(loaded, outside, listener, feed, target, failures)
    if failures:
        raise failures[0]


async def _run(
    loaded: Loaded,
    outside: Outside,
    listener: QueueListener[Message],
    feed: TriggerFeed | None,
    target: Target,
    failures: list[Failure],
) -> None:
    async with trio.open_nursery() as nursery:
        asked = trio.Event()

        def end(reason: str) -> None:
            if asked.is_set():
                nursery.cancel_scope.cancel()
                return
            asked.set()
            grace = listener.options.grace
            outside.observer.report(Draining(reason=reason, seconds=grace))
            listener.start_drain()

        def give_up(failure: Failure) -> None:
            failures.append(failure)
            nursery.cancel_scope.cancel()

        await nursery.start(partial(watch_signals, end, lambda: None))
        for store in stores_among(target.broker):
            nursery.start_soon(watch_store, store, give_up)
        if feed is not None:
            await nursery.start(feed.run)
        async with trio.open_nursery() as listening:
            await listening.start(listener.run)
            outside.observer.report(Started(configuration=loaded.source, seed=outside.seed))
        nursery.cancel_scope.cancel()


async def _make_feed(
    config: Config,
    outside: Outside,
    wanted: Wanted,
    target: Target,
    listener: QueueListener[Message],
    triggers: Triggers,
) -> TriggerFeed | None:
    """What the gateway announces; None: nobody does, and idle queues that don't push are polled."""
    await trio.lowlevel.checkpoint()
    place = None if wanted.triggers is None else _place(wanted.triggers)
    if place is None and target.running:
        address = await find_admin(config, wanted.port_offset)
        place = None if address is None else _place(f"http://{address}")
    if place is None:
        return None
    return TriggerFeed(
        place=place,
        authorization=admin_authorization(config, str(place), Right.LISTEN),
        queues=list(listener.queues),
        triggers=triggers,
        account=listener.account,
        observer=outside.observer,
        rng=outside.rng("triggers"),
    )


def _place(url: str) -> Place:
    try:
        parts = urlsplit(url)
        port = parts.port or ADMIN_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
        raise Failure("--triggers: http(s)://HOST[:PORT] expected", ExitCode.WRONG)
    tls = client_context() if parts.scheme == "https" else None
    return Place(host=parts.hostname, port=port, tls=tls)
