"""
The parent's side: starts the workers, replaces workers that have ended, and keeps their counts.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from gateway.app.assembly.others import PARENT
from gateway.app.assembly.parts import Parts
from gateway.app.endpoints import OpenEndpoint, crash_reporter, port_reporter
from gateway.app.failure import ExitCode, Failure
from gateway.app.pools import PoolRow
from gateway.app.runtime import Runtime
from gateway.app.status.sections import SECTIONS
from gateway.changes import Changes
from gateway.config.file import Loaded
from gateway.domain.backoff import Backoff
from gateway.domain.entity import EntityPath
from gateway.domain.status.figures import merged
from gateway.domain.status.process import Status, Workers
from gateway.extensions.workers.channel import Values, WorkerChannel
from gateway.extensions.workers.events import WorkerLost, WorkerStarted
from gateway.extensions.workers.locks import dial, serve_locks
from gateway.extensions.workers.options import of_workers, shared
from gateway.extensions.workers.passing_on import doors, serve_unix
from gateway.extensions.workers.sharing import CacheSync, StateHub
from gateway.extensions.workers.stores import store_doors
from gateway.wire.pairgate.status import parse_status

RESTART: Final = Backoff(first=0.1, cap=30.0)
LASTING: Final = 10.0  # seconds: a worker that lived longer doesn't count as a failure
ASK_EVERY: Final = 1.0  # seconds: a killed worker's counts since the last question are lost
MOST_QUESTIONS: Final = 2  # unanswered questions, for the status
ANSWER_SECONDS: Final = 1.0  # for fresh counts; a worker that doesn't answer keeps its last counts
DRAIN: Final = {"drain": "the parent drains"}
END_SECONDS: Final = 2.0  # after the drain, until SIGKILL


@attrs.define(eq=False)
class Worker:
    """A worker, from the start of its process to its end."""

    number: int
    process: trio.Process
    channel: WorkerChannel
    cache: CacheSync | None
    sockets: Mapping[int, Sequence[int]]  # the worker's descriptors, by the endpoint's number
    failure: Failure | None = None  # the reason why it couldn't start
    is_ready: bool = False
    status: Status | None = None  # as told last
    has_ended: bool = False
    asked: int = 0  # the number of the last question for its status
    answered: int = 0  # of the last one that it answered
    told: Changes = attrs.field(factory=Changes)

    def ask(self) -> int:
        """
        Ask for the worker's status, unless it leaves two questions unanswered; return the
        question's number.
        """
        if self.asked - self.answered < MOST_QUESTIONS:
            self.asked += 1
            self.channel.put({"ask": self.asked})
        return self.asked

    async def wait_answered(self, number: int) -> None:
        """Return when that question is answered, or the worker has ended."""
        while self.answered < number and not self.has_ended:
            await self.told.wait_next()


@attrs.define(eq=False, kw_only=True)
class WorkerPool:
    """The workers of one gateway, and the Unix sockets at which they reach their parent."""

    loaded: Loaded
    parts: Parts
    runtime: Runtime
    folder: Path  # of the Unix sockets
    as_json: bool
    fail: Callable[[Failure], None]  # called if a worker can't be started at all
    _endpoints: Mapping[int, OpenEndpoint] = attrs.field(factory=dict, init=False)
    restart: Backoff = RESTART
    _reloaded: str | None = attrs.field(default=None, init=False)  # the text that was read last
    _workers: dict[int, Worker] = attrs.field(factory=dict, init=False)
    _hub: StateHub | None = attrs.field(default=None, init=False)
    _past: dict[int, Status] = attrs.field(factory=dict, init=False)  # of ended ones, by number
    _were_ready: set[int] = attrs.field(factory=set, init=False)
    _ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _drains: trio.Event = attrs.field(factory=trio.Event, init=False)

    def share(self, endpoints: Sequence[OpenEndpoint]) -> list[OpenEndpoint]:
        """
        Take over the endpoints that workers serve; return the others. They stay bound here, for
        later workers.
        """
        numbers = of_workers(self.loaded.config)
        self._endpoints = {each.number: each for each in endpoints if each.number in numbers}
        return [each for each in endpoints if each.number not in numbers]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """
        Keep all workers running until `drain`. Cancelled, it kills the workers that still run.
        """
        pair = self.parts.pair
        self._hub = None if pair is None else StateHub(pair.states)
        for feature in self.parts.features.values():
            feature.follow(self._broadcast)
        crash, ended = crash_reporter(self.runtime), port_reporter(self.runtime, "workers")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_again)
            for number, endpoint in self._endpoints.items():
                for path, server in doors(self.folder, number, endpoint.makings):
                    await nursery.start(serve_unix, path, server.serve_connection, crash, ended)
            await nursery.start(serve_locks, self.parts, PARENT, self.folder)
            config = shared(self.loaded.config)
            for door in store_doors(config, self.parts, self.runtime, self.folder):
                await nursery.start(door.leases.run)
                serve = door.server.serve_connection
                await nursery.start(serve_unix, door.path, serve, crash, ended)
            task_status.started()
            async with trio.open_nursery() as workers:
                for number in range(1, self.loaded.config.serving_processes + 1):
                    workers.start_soon(self._keep, number)
            self._ended.set()
            nursery.cancel_scope.cancel()

    async def wait_ready(self) -> None:
        """Return when all workers accept connections."""
        await self._ready.wait()

    def reload(self, loaded: Loaded) -> None:
        """Let all workers apply the new configuration, as the parent does."""
        self._reloaded = loaded.text
        for worker in self._workers.values():
            worker.channel.put({"reload": loaded.text})

    async def drain(self) -> None:
        """Tell all workers to drain; return when they have ended. Cancelled, cut them off."""
        self._drains.set()
        for endpoint in self._endpoints.values():
            await endpoint.listener.aclose()  # so that no client connects any more
        self._broadcast(DRAIN)
        try:
            await self._ended.wait()
        finally:
            self._broadcast(DRAIN)  # the second message cuts its connections

    async def statuses(self) -> Workers:
        """The status of each worker: fresh, or as reported last."""
        with trio.move_on_after(ANSWER_SECONDS):
            ready = [worker for worker in self._workers.values() if worker.is_ready]
            for worker, number in [(worker, worker.ask()) for worker in ready]:
                await worker.wait_answered(number)
        running = [each.status for each in self._workers.values() if each.status is not None]
        return Workers(running=running, ended=[*self._past.values()])

    def _broadcast(self, message: Values) -> None:
        for worker in self._workers.values():
            worker.channel.put(message)

    async def _ask_again(self) -> None:
        while True:
            await trio.sleep(ASK_EVERY)
            for worker in self._workers.values():
                if worker.is_ready:
                    worker.ask()

    async def _keep(self, number: int) -> None:
        failures = 0
        while not self._drains.is_set():
            began, pid = trio.current_time(), None
            try:
                worker = await self._start(number)
            except OSError as error:
                failure = Failure(f"it can't be started: {error.strerror}", ExitCode.TEMPORARY)
            else:
                pid = worker.process.pid
                failure = await self._run(worker)
            if self._drains.is_set():
                return
            if not self._ready.is_set() and number not in self._were_ready:
                self.fail(Failure(f"worker {number}: {failure}", failure.code))
                return
            failures = 0 if trio.current_time() - began >= LASTING else failures + 1
            seconds = self.restart.delay(failures, self.runtime.rng("workers")) if failures else 0.0
            self.runtime.observer.report(
                WorkerLost(worker=number, pid=pid, reason=str(failure), seconds=seconds)
            )
            with trio.move_on_after(seconds):
                await self._drains.wait()

    async def _start(self, number: int) -> Worker:
        """
        Start a worker.

        Raises:
            OSError: the system can't start another process.
        """
        ours, theirs = socket.socketpair()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        with theirs:
            sockets = {
                number: endpoint.listener.descriptors
                for number, endpoint in self._endpoints.items()
            }
            fds = [theirs.fileno(), *(fd for each in sockets.values() for fd in each)]
            command = [sys.executable, "-m", "gateway.extensions.workers", str(theirs.fileno())]
            try:
                process = await trio.lowlevel.open_process(
                    command, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True
                )
            except BaseException:
                stream.socket.close()  # a worker that was started after all ends by itself
                raise
        pair = self.parts.pair
        cache = None if pair is None else CacheSync(pair.entity_cache)
        return Worker(number, process, WorkerChannel(stream), cache, sockets)

    async def _run(self, worker: Worker) -> Failure:
        """Run a worker; return the reason for its end."""
        self._workers[worker.number] = worker
        try:
            code = await self._attend(worker)
        finally:
            self._record_end(worker)
        return worker.failure or Failure(f"exit code {code}" if code >= 0 else f"signal {-code}")

    async def _attend(self, worker: Worker) -> int:
        """Serve the worker's channel until it has ended; return its exit code."""
        process = worker.process
        try:
            async with worker.channel.stream, trio.open_nursery() as nursery:
                self._greet(worker)
                nursery.start_soon(worker.channel.write)
                if worker.cache is not None:
                    nursery.start_soon(worker.cache.watch, worker.channel)
                await self._listen(worker)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            if process.poll() is None:
                process.terminate()  # the worker drains already: the signal cuts its connections
                with trio.move_on_after(END_SECONDS, shield=True):
                    await process.wait()
            process.kill()  # does nothing if it has ended
        return code

    def _greet(self, worker: Worker) -> None:
        """Send the worker all that it needs to begin."""
        channel, pair = worker.channel, self.parts.pair
        greeting: dict[str, Any] = {
            "worker": worker.number,
            "text": self.loaded.text,
            "binds": self.loaded.binds,
            "source": self.loaded.source,
            "folder": str(self.loaded.folder),
            "json": self.as_json,
            "sockets": {str(number): list(fds) for number, fds in worker.sockets.items()},
            "unix": str(self.folder),
            **self.parts.others.greeting(),
        }
        if pair is not None:
            identity = pair.destination.identity
            greeting["identity"] = None if identity is None else str(identity)
        hub = self._hub
        if hub is not None:
            greeting |= hub.add(worker.number, channel.wake)
            channel.collectors.append(lambda: hub.collect(worker.number))
        if worker.cache is not None:
            greeting |= worker.cache.collect() or {}
            channel.collectors.append(worker.cache.collect)
        for feature in self.parts.features.values():
            greeting |= feature.greeting()
        if self._reloaded is not None:
            greeting["reload"] = self._reloaded
        channel.put(greeting)
        if self._drains.is_set():
            channel.put(DRAIN)

    async def _listen(self, worker: Worker) -> None:
        while (message := await worker.channel.read()) is not None:
            if "failed" in message:
                worker.failure = Failure(message["failed"], ExitCode(message["code"]))
            if "ready" in message:
                self._record_ready(worker)
            if "status" in message:
                worker.status = parse_status(message["status"].encode(), SECTIONS)
                worker.answered = max(worker.answered, message["answer"])
                worker.told.notify()
            if "changes" in message and self._hub is not None:
                self._hub.apply(worker.number, message["changes"])
            if worker.cache is not None:
                worker.cache.apply(message)
            for name, size in message.get("announced", {}).items():
                self.parts.announcements.publish(EntityPath(name), size)

    def _record_ready(self, worker: Worker) -> None:
        worker.is_ready = True
        self.runtime.observer.report(WorkerStarted(worker=worker.number, pid=worker.process.pid))
        self._were_ready.add(worker.number)
        if len(self._were_ready) == self.loaded.config.serving_processes:
            self._ready.set()

    def _record_end(self, worker: Worker) -> None:
        del self._workers[worker.number]
        if self._hub is not None:
            self._hub.remove(worker.number)
        worker.has_ended = True
        worker.told.notify()
        if worker.status is not None:
            before = self._past.get(worker.number)
            last = worker.status
            self._past[worker.number] = last if before is None else merged(last, (), [before])


@attrs.frozen(eq=False)
class WorkerPlan:
    """The workers of a gateway before its parts are there, and the folder of their sockets."""

    loaded: Loaded
    folder: Path
    as_json: bool

    async def dial(self, number: int) -> trio.abc.Stream:
        """Connect to the process of that number. Raises OSError if it doesn't run."""
        return await dial(self.folder, number)

    def make(self, parts: Parts, runtime: Runtime, fail: Callable[[Failure], None]) -> WorkerPool:
        """The pool; none of its workers runs yet."""
        return WorkerPool(
            loaded=self.loaded,
            parts=parts,
            runtime=runtime,
            folder=self.folder,
            as_json=self.as_json,
            fail=fail,
        )


def _open(stack: AsyncExitStack, loaded: Loaded, as_json: bool) -> WorkerPlan:
    """
    The stack removes the files of the workers.

    Raises:
        Failure: there is no folder for temporary files.
    """
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pairgate-"))
    except OSError as error:
        text = f"workers: no folder can be made for their sockets ({error}): set TMPDIR"
        raise Failure(text) from error
    return WorkerPlan(loaded, Path(folder), as_json)


POOL: Final = PoolRow(shared, _open)
