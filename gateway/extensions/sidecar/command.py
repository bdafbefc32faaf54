"""`pairgate run`: a command with a gateway beside it."""

import os
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Sequence
from typing import Any, Final

import click

from gateway.commands.terminal import Invocation, add_config, add_json, failing_in_words, printable
from gateway.extensions.sidecar.environment import SERVED, refuse_tls, variables
from gateway.extensions.sidecar.process import RunningGateway, gateway

HOST: Final = "127.0.0.1"
# Signals that end a command, or that it may know; its own end is what ends this process.
PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Signals of a terminal, which sends them to the command, too.
OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as a shell's
OF_SIGNAL: Final = 128  # a shell's code of a command that a signal has ended, less its number


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARGUMENT]...")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Create this queue, too, in the primary if that is embedded. Repeatable.",
)
@click.option("--open", "opens", is_flag=True, help="Open the gateway's page in a browser.")
@add_config
@add_json
def run(**arguments: Any) -> None:
    """
    Run a command with a gateway beside it, whose addresses it finds in its environment.

    The gateway listens at free ports of 127.0.0.1 and ends after the command. The exit code is
    the command's; signals go to the command. Variables: SERVICEBUS_CONNECTION_STRING, AMQP_URL,
    SERVICEBUS_REST_URL, AZURE_STORAGE_CONNECTION_STRING, and PAIRGATE_URL, which `pairgate status
    --url` takes.
    """
    failing_in_words(_run)(**arguments)


def _run(
    invocation: Invocation, command: Sequence[str], queues: Sequence[str], opens: bool
) -> None:
    binds = [f"{protocol}={HOST}:0" for protocol in SERVED]
    loaded = invocation.read(binds, queues)
    refuse_tls(loaded.config)
    given = {"--bind": binds, "--queue": queues}
    options = [word for name, values in given.items() for value in values for word in (name, value)]
    if invocation.config is not None:
        options += ["--config", str(invocation.config)]
    grace, as_json = loaded.config.limits.grace, invocation.as_json
    with gateway(options, grace, as_json=as_json) as running:
        found = variables(loaded.config, running.addresses)
        if opens:
            webbrowser.open(f"{found['PAIRGATE_URL']}/")
        code = _run_command(command, {**os.environ, **found}, running)
    sys.exit(code)


def _run_command(command: Sequence[str], environ: dict[str, str], running: RunningGateway) -> int:
    """Run the command to its end; return its exit code as a shell does."""
    child: subprocess.Popen[bytes] | None = None
    early = list[int]()

    def pass_on(number: int, frame: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # A terminal's signals reach the command without help.
    at_terminal = os.isatty(sys.stdin.fileno())
    for number in (*PASSED_ON, *OF_TERMINAL):
        alone = at_terminal and number in OF_TERMINAL
        signal.signal(number, (lambda *_: None) if alone else pass_on)
    try:
        child = subprocess.Popen(command, env=environ)
    except OSError as error:
        click.echo(f"Error: {printable(command[0])}: {error.strerror}", err=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    for each in early:
        child.send_signal(each)
    code = child.wait()
    if running.process.poll() is not None:
        ended = running.process.returncode
        click.echo(f"pairgate: the gateway ended before the command, with code {ended}", err=True)
    return code if code >= 0 else OF_SIGNAL - code
