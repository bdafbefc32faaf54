"""A worker: serves connections as a gateway does, until its parent ends it, or is gone."""

import os
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.app.assembly.building import build
from gateway.app.assembly.others import ProcessPlace, others_of
from gateway.app.assembly.parts import Feature, Parts, ProcessPlan
from gateway.app.assembly.roles import Role
from gateway.app.assembly.services import services_of
from gateway.app.endpoints import (
    OpenEndpoint,
    crash_reporter,
    loss_reporter,
    make_budget,
    make_makings,
    tls_of,
)
from gateway.app.extending import open_extensions
from gateway.app.failure import Failure
from gateway.app.logs import Reloader, open_log
from gateway.app.pools import OneProcess
from gateway.app.process import SignalWatch, allow_files, collect_seldom
from gateway.app.runtime import Runtime
from gateway.app.servers import make_server
from gateway.app.serving import GatewayShutdown, apply_reloaded, run_parts
from gateway.app.status.board import StatusBoard
from gateway.config.endpoints import SERVE
from gateway.config.file import Loaded, parse
from gateway.config.options import Config
from gateway.domain.identity import parse_identity
from gateway.extensions.workers.channel import LAST_SECONDS, Values, WorkerChannel
from gateway.extensions.workers.locks import dial, serve_locks
from gateway.extensions.workers.options import of_worker
from gateway.extensions.workers.passing_on import open_parent
from gateway.extensions.workers.sharing import CacheSync, StateReplica
from gateway.extensions.workers.stores import OfParent, paths_of
from gateway.net.listeners import Listener, inherited_sockets
from gateway.wire.pairgate.status import build_status

STANDARD_ERROR: Final = 2  # of POSIX
BETWEEN_ANNOUNCEMENTS: Final = 0.01  # seconds: under load, one for many messages


async def main(descriptor: int) -> None:
    """
    Serve until the parent ends this process; `descriptor` is this process's end of the channel.
    """
    own = socket.socket(fileno=descriptor)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(own))
    async with stream:
        channel = WorkerChannel(stream)
        greeting = await channel.read()
        if greeting is None:  # the parent has ended already
            return
        loaded = loaded_of(greeting, greeting["text"])
        number = greeting["worker"]
        with (
            open_log(loaded, STANDARD_ERROR, as_json=greeting["json"], worker=number) as log,
            open_extensions(loaded.config, log) as opened,
        ):
            texts = [greeting["text"]]
            reload = Reloader(loaded, log, lambda: loaded_of(greeting, texts[-1]))
            worker = Serving(
                channel=channel,
                greeting=greeting,
                loaded=loaded,
                runtime=Runtime(observer=log, opened=opened),
            )
            try:
                await worker.run(texts, reload)
            except Failure as failure:
                await channel.finish({"failed": str(failure), "code": failure.code})


def loaded_of(greeting: Values, text: str) -> Loaded:
    """The configuration with that text, which the parent has read."""
    folder, binds = Path(greeting["folder"]), greeting["binds"]
    source = greeting["source"]
    return parse(text, source=source, folder=folder, environ=os.environ, binds=binds)


@attrs.define(eq=False, kw_only=True)
class Serving:
    """The main task of a worker."""

    channel: WorkerChannel
    greeting: Values
    loaded: Loaded
    runtime: Runtime
    board: StatusBoard = attrs.field(init=False)
    states: StateReplica | None = attrs.field(default=None, init=False)
    cache: CacheSync | None = attrs.field(default=None, init=False)
    features: Collection[Feature] = attrs.field(default=(), init=False)
    apply: Callable[[], None] = attrs.field(init=False)

    async def run(self, texts: list[str], reload: Reloader) -> None:
        """
        Return when the last connection has ended. `texts` gets each new text of the configuration;
        `reload` reads the last.

        Raises:
            Failure: a part can't be started.
        """
        config = of_worker(self.loaded.config)
        allow_files(len(config.endpoints_of(SERVE)) * config.limits.listener.max_connections)
        async with AsyncExitStack() as stack:
            place = ProcessPlace(
                config=config,
                runtime=self.runtime,
                number=self.greeting["worker"],
                dial=partial(dial, self._folder),
                told=self.greeting,
            )
            parts = await self._parts(stack, place)
            self.board = StatusBoard(
                config=config, runtime=self.runtime, refusals=parts.refusals, parts=parts
            )
            self._share(parts)
            collect_seldom()
            endpoints = await self._endpoints(stack, config, parts)

            def apply(fresh: Loaded) -> None:
                apply_reloaded(config, fresh.config, endpoints, parts, self.runtime)

            if "reload" in self.greeting:  # so that no client is served by outdated policies
                texts.append(self.greeting["reload"])
                await reload(apply)
            ending = GatewayShutdown(self.runtime, config.limits.grace)
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_locks, parts, place.number, self._folder)
                nursery.start_soon(self.channel.write)
                nursery.start_soon(self._announce, parts)
                if self.cache is not None:
                    nursery.start_soon(self.cache.watch, self.channel)
                begin = partial(nursery.start_soon, reload, apply)
                nursery.start_soon(self._listen, ending, texts, begin)
                await run_parts(
                    parts,
                    endpoints,
                    ending,
                    announce=lambda: self.channel.put({"ready": True}),
                    # The parent reads the file for all.
                    services=[SignalWatch(ending.ask), *await services_of(Role.WORKER, parts)],
                    pool=OneProcess(),
                )
                self.channel.put(self._status())
                with trio.move_on_after(LAST_SECONDS):
                    await self.channel.sent()
                nursery.cancel_scope.cancel()

    @property
    def _folder(self) -> Path:
        """The folder of the sockets at which the processes of this gateway reach each other."""
        return Path(self.greeting["unix"])

    async def _parts(self, stack: AsyncExitStack, place: ProcessPlace) -> Parts:
        told, config, runtime = self.greeting.get("identity"), place.config, self.runtime
        plan = ProcessPlan(
            role=Role.WORKER,
            stack=stack,
            config=config,
            runtime=runtime,
            opening=OfParent(stack, runtime, paths_of(config, self._folder)),
            others=others_of(place),
            identity=None if told is None else parse_identity(told),
        )
        return await build(plan)

    def _share(self, parts: Parts) -> None:
        pair = parts.pair
        self.features = parts.features.values()
        if pair is not None:
            self.states = StateReplica(pair.states, self.channel.wake)
            self.cache = CacheSync(pair.entity_cache)
        self._apply(self.greeting)
        if self.states is not None and self.cache is not None:
            self.channel.collectors += [self.states.collect, self.cache.collect]

    def _apply(self, message: Values) -> None:
        """Act on a message of the parent's as each part that shares something with it does."""
        for feature in self.features:
            feature.receive(message)
        if self.states is not None:
            self.states.apply(message)
        if self.cache is not None:
            self.cache.apply(message)

    async def _endpoints(
        self, stack: AsyncExitStack, config: Config, parts: Parts
    ) -> list[OpenEndpoint]:
        parent = await stack.enter_async_context(open_parent())
        folder, budget = self._folder, make_budget(config)
        sockets: Mapping[str, list[int]] = self.greeting["sockets"]
        endpoints = []
        for key, descriptors in sockets.items():
            index = int(key)
            protocol = config.endpoints[index].protocol
            makings = attrs.evolve(
                make_makings(config, index, parts, self.runtime, budget),
                on_parent=partial(parent.handler, folder, index),
            )
            listener = Listener(
                inherited_sockets(descriptors),
                options=config.limits.listener,
                on_crash=crash_reporter(self.runtime),
                on_lost=loss_reporter(self.runtime, protocol, parts.refusals),
            )
            listener.limit_clients(parts.clients)
            listener.share_sockets()
            stack.push_async_callback(listener.aclose)
            server = make_server(protocol, makings, tls_of(config, index))
            endpoints.append(
                OpenEndpoint(
                    number=index,
                    protocol=protocol,
                    listener=listener,
                    server=server,
                    makings=makings,
                )
            )
        return endpoints

    async def _listen(
        self, ending: GatewayShutdown, texts: list[str], reload: Callable[[], object]
    ) -> None:
        while (message := await self.channel.read()) is not None:
            if "ask" in message:
                self.channel.put(self._status(message["ask"]))
            if "reload" in message:
                texts.append(message["reload"])
                reload()
            if "drain" in message:
                ending.ask(message["drain"])
            self._apply(message)
        if not ending.acceptors.cancel_called:
            ending.ask("the parent has ended")

    async def _announce(self, parts: Parts) -> None:
        """Report new messages to the parent, which has the subscribers."""
        with parts.announcements.subscribe() as stream:
            while True:
                came: Mapping[Any, int] = await stream.next()
                self.channel.put({"announced": {queue.name: size for queue, size in came.items()}})
                await self.channel.sent()
                await trio.sleep(BETWEEN_ANNOUNCEMENTS)

    def _status(self, question: int = 0) -> Values:
        return {"status": build_status(self.board.counts()).decode(), "answer": question}
