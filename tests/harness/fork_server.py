"""
Starts `pairgate` by a fork of a process that has imported all of it: the imports are most of a
start.

    a process of tests  --folder, arguments, descriptors-->  the fork server  --fork-->  pairgate

A forked process is `python -m gateway` from then on: it runs the same module, in its own folder,
with the environment of the fork server. The fork server kills what it forked, and ends, when the
process that started it ends.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final

import attrs
import trio

import gateway
from tests.harness.servers import ServerFailed

ROOT: Final = Path(__file__).parents[2]
_NONE: Final[Mapping[str, str]] = {}
_MOST_BYTES: Final = 65536  # of a request
_KILLED: Final = str(-signal.SIGKILL).encode()  # what ends with the fork server


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_RDWR)


def _descriptor(file: BinaryIO | None) -> int:
    return _nowhere() if file is None else file.fileno()


@attrs.define(eq=False)
class ForkedProcess:
    """A forked process: the part of `trio.Process` that tests use."""

    pid: int
    stderr: trio.abc.ReceiveStream
    _ended: int  # a descriptor, over which the exit code is sent
    _is_open: bool = True
    _waiting: trio.Lock = attrs.field(factory=trio.Lock)
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs; the number of a signal is < 0."""
        if self.returncode is None:
            try:
                self.returncode = int(os.read(self._ended, 16) or _KILLED)
            except BlockingIOError:
                return None
        return self.returncode

    async def wait(self) -> int:
        """Return the exit code when the process has ended."""
        await trio.lowlevel.checkpoint()
        async with self._waiting:
            while (code := self.poll()) is None:
                await trio.lowlevel.wait_readable(self._ended)
            if self._is_open:
                os.close(self._ended)
                self._is_open = False
        return code

    def send_signal(self, number: int) -> None:
        """Do nothing if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@attrs.define(eq=False)
class ForkServer:
    """The side of the process that wants others to be started."""

    _control: socket.socket
    _process: subprocess.Popen[bytes]
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> "ForkServer":
        """Return at once: the fork server imports while its first request waits."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return cls(ours, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def fork(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        module: str = "gateway",
        stdin: BinaryIO | None = None,
        stdout: BinaryIO | None = None,
        variables: Mapping[str, str] = _NONE,
        imports: Sequence[str] = (),
    ) -> ForkedProcess:
        """
        Start `python -m MODULE ARGUMENTS` in that folder; None: nothing to read, or written to
        nowhere. `variables` are added to the environment after Python has read its own. The fork
        server first imports the modules `imports`, and keeps them.

        Raises:
            ServerFailed: the fork server has ended.
        """
        log, their_log = os.pipe()
        ended, their_ended = os.pipe()
        os.set_blocking(ended, False)
        request = json.dumps(
            {
                "folder": str(folder),
                "module": module,
                "arguments": arguments,
                "variables": dict(variables),
                "imports": list(imports),
            }
        ).encode()
        try:
            standard = [_descriptor(stdin), _descriptor(stdout), their_log]
            pid = await trio.to_thread.run_sync(self._ask, request, [*standard, their_ended])
        except BaseException:
            os.close(log)
            os.close(ended)
            raise
        finally:
            os.close(their_log)
            os.close(their_ended)
        return ForkedProcess(pid, trio.lowlevel.FdStream(log), ended)

    async def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        stdin: bytes = b"",
        variables: Mapping[str, str] = _NONE,
        *,
        module: str = "gateway",
        imports: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        """
        Run `python -m MODULE ARGUMENTS` in that folder to its end. Cancelled, it is killed. Raises
        as `fork`.
        """
        with TemporaryFile() as given, TemporaryFile() as printed:
            given.write(stdin)
            given.seek(0)
            process = await self.fork(
                folder,
                arguments,
                module=module,
                stdin=given,
                stdout=printed,
                variables=variables,
                imports=imports,
            )
            try:
                async with process.stderr:
                    errors = b"".join([chunk async for chunk in process.stderr])
                code = await process.wait()
            finally:
                process.kill()
            printed.seek(0)
            return subprocess.CompletedProcess(arguments, code, printed.read(), errors)

    def end(self) -> None:
        """Block until the fork server and all processes that it forked are gone."""
        with self._control:
            self._control.shutdown(socket.SHUT_RDWR)  # a copy of the socket may be elsewhere
        self._process.wait()

    def _ask(self, request: bytes, descriptors: Sequence[int]) -> int:
        answer = b""
        with self._lock, suppress(ConnectionError):
            socket.send_fds(self._control, [request], descriptors)
            answer = self._control.recv(16)
        if not answer:
            raise ServerFailed("the fork server has ended")
        return int(answer)


@attrs.define(eq=False)
class _Forking:
    """The side of the fork server."""

    control: socket.socket
    ready: selectors.EpollSelector = attrs.field(factory=selectors.EpollSelector)
    running: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # pid, who is told; by pidfd

    def serve(self) -> tuple[str, Sequence[str]] | None:
        """
        Fork until the other side is gone, and return None. A forked process returns its module and
        its arguments.
        """
        self.ready.register(self.control, selectors.EVENT_READ)
        while True:
            for key, _ in self.ready.select():
                if key.fileobj is not self.control:
                    self._tell_end(key.fd)
                    continue
                request, descriptors, _, _ = socket.recv_fds(self.control, _MOST_BYTES, 4)
                if not request:
                    self._kill_all()
                    return None
                *standard, ended = descriptors
                asked = json.loads(request)
                _import(asked["imports"])
                pid = os.fork()
                if pid == 0:
                    self._forget()
                    os.close(ended)
                    return _enter(asked, standard)
                for each in standard:
                    os.close(each)
                self._watch(pid, ended)

    def _watch(self, pid: int, ended: int) -> None:
        pidfd = os.pidfd_open(pid)
        self.running[pidfd] = pid, ended
        self.ready.register(pidfd, selectors.EVENT_READ)
        self.control.send(str(pid).encode())

    def _tell_end(self, pidfd: int) -> None:
        self.ready.unregister(pidfd)
        os.close(pidfd)
        pid, ended = self.running.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # the process that asked may be gone
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ended)

    def _kill_all(self) -> None:
        for pid, _ in self.running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _forget(self) -> None:
        """Close all descriptors of the fork server, in a forked process."""
        self.ready.close()
        self.control.close()
        for pidfd, (_, ended) in self.running.items():
            os.close(pidfd)
            os.close(ended)


def _import(modules: Sequence[str]) -> None:
    """Import these modules, unless they are there. What lives then won't be garbage."""
    missing = [each for each in modules if each not in sys.modules]
    if not missing:
        return
    gc.disable()  # a thousand modules are no garbage, however often one looks
    for each in missing:
        import_module(each)
    gc.enable()
    gc.collect()
    gc.freeze()


def _enter(asked: Mapping[str, Any], standard: Sequence[int]) -> tuple[str, Sequence[str]]:
    """
    Make a forked process as `python -m` would find itself; return its module and its arguments.
    """
    for number, each in enumerate(standard):
        os.dup2(each, number)
        os.close(each)
    os.chdir(asked["folder"])
    if not sys.flags.safe_path:
        sys.path[0] = asked["folder"]
    os.environ.update(asked["variables"])
    return asked["module"], asked["arguments"]


def _main() -> None:
    found = [each.name for each in walk_packages(gateway.__path__, "gateway.")]
    _import([each for each in found if not each.endswith(".__main__")])
    with socket.socket(fileno=int(sys.argv[1])) as control:
        asked = _Forking(control).serve()
    if asked is not None:
        module, sys.argv[1:] = asked
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
