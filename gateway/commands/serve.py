"""`pairgate serve` and `syphon`, which run until they are told to end."""

from typing import Final

import click

from gateway.app import serving, syphoning
from gateway.app.logs import open_log, reloader
from gateway.app.outside import Outside
from gateway.commands.terminal import Invocation, add_port_offset, command, run

STANDARD_ERROR: Final = 2


@command
@add_port_offset
def serve(invocation: Invocation, port_offset: int) -> None:
    """Serve clients until SIGTERM or Ctrl-C, which drain; a second one ends at once."""
    loaded = invocation.read()
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        reload = reloader(loaded, log, invocation.read)
        run(serving.serve, loaded, Outside(observer=log), port_offset=port_offset, reload=reload)


@command
@click.option("--label", help="Whose backlog. Default: the pair's.")
@click.option("--to", metavar="NAMESPACE", help="Where it goes. Default: the pair's primary.")
def syphon(invocation: Invocation, label: str | None, to: str | None) -> None:
    """Move the backlog from the secondary to where it belongs, and nothing else."""
    loaded = invocation.read()
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        run(syphoning.syphon, loaded, Outside(observer=log), label=label, to=to)
