"""
The processes that serve the clients of a gateway: its own, or those of an extension.

An extension with another way than `OneProcess` names a `PoolRow` as `pools`.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import attrs
import trio

from gateway.app.assembly.others import Dial
from gateway.app.assembly.parts import Parts
from gateway.app.endpoints import OpenEndpoint
from gateway.app.failure import Failure
from gateway.app.runtime import Runtime
from gateway.config.file import Loaded
from gateway.config.options import Config
from gateway.domain.status.process import Workers
from gateway.extensions.listing import parts as parts_of_extensions


class Pool(Protocol):
    """The other processes of a gateway that runs; a `gateway.ports.Service`."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None: ...

    async def wait_ready(self) -> None:
        """Return when all of them accept connections."""
        ...

    async def drain(self) -> None:
        """Tell all of them to drain; return when they have ended. Cancelled, cut them off."""
        ...

    async def statuses(self) -> Workers:
        """The status of each of them."""
        ...

    def share(self, endpoints: Sequence[OpenEndpoint]) -> Sequence[OpenEndpoint]:
        """Take over the endpoints that they serve; return the others."""
        ...

    def reload(self, loaded: Loaded) -> None:
        """Let them apply the new configuration."""
        ...


class OneProcess:
    """The `Pool` of a gateway that is one process."""

    dial: Dial | None = None

    def make(self, parts: Parts, runtime: Runtime, fail: Callable[[Failure], None]) -> "OneProcess":
        """Return this: there is nothing to be made."""
        return self

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return at once."""
        task_status.started()

    async def wait_ready(self) -> None:
        """Return at once."""

    async def drain(self) -> None:
        """Return at once."""

    async def statuses(self) -> Workers:
        return Workers()

    def share(self, endpoints: Sequence[OpenEndpoint]) -> Sequence[OpenEndpoint]:
        return endpoints

    def reload(self, loaded: Loaded) -> None:
        """Do nothing: there are no other processes."""


class PoolPlan(Protocol):
    """A pool before the parts of the gateway are there."""

    @property
    def dial(self) -> Dial | None:
        """Connects to one of the processes by its name; None: there is only this one."""
        ...

    def make(self, parts: Parts, runtime: Runtime, fail: Callable[[Failure], None]) -> Pool:
        """The pool; `fail` is called if a process can't be started at all."""
        ...


@attrs.frozen
class PoolRow:
    """A way to serve with several processes: for configurations with `serving_processes`."""

    share: Callable[[Config], Config]  # the configuration of this process: its share of limits
    # Gets a stack that closes what it opens, and whether the logs are JSON; raises `Failure`.
    open: Callable[[AsyncExitStack, Loaded, bool], PoolPlan]


def _open_alone(stack: AsyncExitStack, loaded: Loaded, as_json: bool) -> PoolPlan:
    return OneProcess()


def pool_row(config: Config) -> PoolRow:
    """The way of this configuration."""
    if config.serving_processes == 1:
        return PoolRow(lambda config: config, _open_alone)
    rows: Sequence[PoolRow] = parts_of_extensions("pools")
    return rows[0]  # the extension with an option for several processes has one
