"""`pairgate serve` and `syphon`, which run until they are told to end."""

import os
from collections.abc import Callable
from functools import partial
from typing import Final

import click

from gateway.app import serving, syphoning
from gateway.app.extending import open_extensions
from gateway.app.logs import Reloader, open_log
from gateway.app.process import service_manager
from gateway.app.runtime import Runtime
from gateway.commands.terminal import Invocation, add_adopt, add_port_offset, command, run
from gateway.config.given import BIND_VARIABLE
from gateway.extensions.listing import extensions

STANDARD_ERROR: Final = 2


def _add_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that extensions have here."""
    flags = (flag for extension in extensions() for flag in extension.serve_flags)
    for flag in reversed([*flags]):
        function = click.option(f"--{flag.name}", is_flag=True, help=flag.help)(function)
    return function


@command
@add_port_offset
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="PROTOCOL=HOST:PORT",
    help=f"Listen at this address instead. Repeatable; other commands look into ${BIND_VARIABLE}.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Create this queue, too, in the primary if that is embedded. Repeatable.",
)
@_add_flags
@add_adopt
def serve(
    invocation: Invocation,
    port_offset: int,
    binds: tuple[str, ...],
    queues: tuple[str, ...],
    adopted: tuple[str, ...],
    **flags: bool,
) -> None:
    """Serve clients until SIGTERM or Ctrl-C, then drain; a second signal ends it at once."""
    loaded = invocation.read(binds, queues)
    options = serving.ServeOptions(
        port_offset=port_offset,
        adopted=adopted,
        as_json=invocation.as_json,
        flags=[name.replace("_", "-") for name, given in flags.items() if given],
    )
    with (
        open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log,
        open_extensions(loaded.config, log) as opened,
        service_manager(log, os.environ) as manager,
    ):
        run(
            serving.serve,
            loaded,
            Runtime(observer=manager, service_manager=manager, opened=opened),
            options,
            reloader=Reloader(loaded, log, partial(invocation.read, binds, queues), manager),
        )


@command
@click.option("--label", help="The backlog with this label. Default: the pair's label.")
@click.option("--to", metavar="NAMESPACE", help="The destination. Default: the pair's primary.")
@add_adopt
def syphon(
    invocation: Invocation, label: str | None, to: str | None, adopted: tuple[str, ...]
) -> None:
    """Move the backlog from the secondary to its destination, and do nothing else."""
    loaded = invocation.read()
    with (
        open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log,
        open_extensions(loaded.config, log) as opened,
        service_manager(log, os.environ) as manager,
    ):
        run(
            syphoning.syphon,
            loaded,
            Runtime(observer=manager, service_manager=manager, opened=opened),
            label=label,
            to=to,
            adopted=adopted,
            reloader=Reloader(loaded, log, invocation.read, manager),
        )
