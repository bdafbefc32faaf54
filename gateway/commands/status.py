"""`pairgate status`: the state of the running gateway, for people and for scripts."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from gateway.app.failure import ExitCode
from gateway.app.operations.admin_choice import AdminChoice
from gateway.commands.admin import add_admin, with_keys_when_used
from gateway.commands.terminal import (
    Interrupted,
    Invocation,
    add_config,
    add_json,
    failing_in_words,
    printable,
    run_until_interrupted,
)


@click.command()
@add_config
@add_json
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option("--ready", is_flag=True, help="Only ask whether it takes work: for health checks.")
@failing_in_words
@add_admin
def status(invocation: Invocation, watch: bool, ready: bool, admin: AdminChoice) -> None:
    """
    Show the state of the running gateway, or of the one at --url.

    Exit code 0: all is well. 1: the gateway needs attention; the first lines say why. 75: no
    gateway answers. With --ready, 1 means that it starts or ends; an outage doesn't count.
    """
    if ready:
        _show_readiness(invocation, admin)
    # Imported here: --ready runs without the gateway's parts, twice a minute in each pod.
    from gateway.commands import status_view

    config, admin = with_keys_when_used(invocation, admin)
    if watch:
        try:
            run_until_interrupted(
                status_view.watch, config, as_json=invocation.as_json, admin=admin
            )
        except Interrupted:
            sys.exit(ExitCode.DONE)
    is_well = status_view.show(invocation, config, admin)
    sys.exit(ExitCode.DONE if is_well else ExitCode.FAILED)


def _show_readiness(invocation: Invocation, admin: AdminChoice) -> NoReturn:
    from gateway.app.operations.probing import ask_readiness
    from gateway.config.source import endpoints_alone, find_source

    endpoints = endpoints_alone(find_source(invocation.config, Path.cwd()), os.environ)
    if endpoints is None:  # the whole says what is wrong with them
        endpoints = invocation.read_with().endpoints
    address, found = ask_readiness(endpoints, admin)
    value = {"gateway": address, "ready": found.is_ready, "reason": found.reason}
    text = json.dumps(value) if invocation.as_json else printable(f"{address}: {found.reason}")
    click.echo(text)
    sys.exit(ExitCode.DONE if found.is_ready else ExitCode.FAILED)
