"""The command line: the module of each command, which has its arguments and exit codes."""

import gc
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.extensions.listing import commands, extensions

_OF_CORE: Final[Mapping[str, str]] = {  # by command: its module in `gateway.commands`
    "agent": "listen",
    "bench": "bench",
    "certs": "trial",
    "check": "check",
    "completion": "completion",
    "config": "config",
    "create": "entities",
    "delete": "entities",
    "demo": "trial",
    "drain": "process",
    "events": "events",
    "failback": "control",
    "failover": "control",
    "keys": "keys",
    "list": "entities:list_",
    "listen": "listen",
    "pause": "control",
    "peek": "messages",
    "probe": "control",
    "provision": "check",
    "rate": "control",
    "receive": "messages",
    "reload": "process",
    "resume": "control",
    "send": "messages",
    "serve": "serve",
    "status": "status",
    "store": "store",
    "syphon": "serve",
    "token": "token",
    "trigger": "messages",
}
# By command: its module, and its name in the module where that differs.
COMMANDS: Final[Mapping[str, str]] = dict(
    sorted(
        (
            *((name, f"gateway.commands.{module}") for name, module in _OF_CORE.items()),
            *commands().items(),
        )
    )
)


def _place_of(name: str) -> str:
    """The command's module and name there; empty: there is no such command."""
    return COMMANDS.get(name) or commands(extensions()).get(name, "")


def command_named(name: str) -> click.Command:
    """
    Import and return the command, so that no command waits for the imports of others. Raises
    KeyError.
    """
    place = _place_of(name)
    if not place:
        raise KeyError(name)
    # Modules are never garbage: a collection that searches them takes a seventh of a start.
    gc.disable()
    try:
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or name)
    finally:
        gc.enable()
    return command


def _fail_in_json(text: str, code: int) -> None:
    importlib.import_module("gateway.commands.terminal").fail(text, code, as_json=True)


class _Commands(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        """Run as click does, except that with `--json` the error of a wrong usage is JSON, too."""
        given = extra.get("args", args[0] if args else None)
        if "--json" not in (sys.argv[1:] if given is None else given):
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            _fail_in_json(error.format_message(), error.exit_code)
        except click.Abort:  # Ctrl-C
            _fail_in_json("aborted", 1)
        else:
            sys.exit(code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *commands(extensions())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if _place_of(cmd_name) else None


def _show_version(context: click.Context) -> None:
    text = importlib.import_module("gateway.commands.version").version_text()
    click.echo(f"pairgate {text}")
    context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, parameter, asked: _show_version(context) if asked else None,
    help="Print the version, and the commit and the lock that it was built from.",
)
def main() -> None:
    """A messaging gateway that pairs two namespaces, so that a producer notices no outage."""
