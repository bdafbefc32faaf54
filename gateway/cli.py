"""The command line: where each command is. Its arguments and exit codes are there."""

import gc
import importlib
from collections.abc import Mapping
from typing import Final

import click

COMMANDS: Final[Mapping[str, str]] = {  # and its module in `gateway.commands`
    "agent": "listen",
    "certs": "trial",
    "check": "check",
    "demo": "trial",
    "listen": "listen",
    "peek": "messages",
    "provision": "check",
    "receive": "messages",
    "send": "messages",
    "serve": "serve",
    "status": "status",
    "store": "store",
    "syphon": "serve",
    "trigger": "messages",
}


def command_named(name: str) -> click.Command:
    """Import it: no command waits for what only others need. Raises KeyError."""
    # What is imported stays: to look through it for garbage takes a seventh of a start.
    gc.disable()
    try:
        command: click.Command = getattr(
            importlib.import_module(f"gateway.commands.{COMMANDS[name]}"), name
        )
    finally:
        gc.enable()
    return command


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pairgate")
def main() -> None:
    """A messaging gateway that pairs two namespaces, so that a producer notices no outage."""
