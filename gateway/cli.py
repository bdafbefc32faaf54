"""The command line: where each command is. Its arguments and exit codes are there."""

import gc
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

COMMANDS: Final[Mapping[str, str]] = {  # and its module in `gateway.commands`
    "agent": "listen",
    "bench": "bench",
    "certs": "trial",
    "check": "check",
    "completion": "completion",
    "config": "config",
    "create": "entities",
    "dead-letters": "redrive",
    "delete": "entities",
    "demo": "trial",
    "drill": "drill",
    "drain": "process",
    "events": "events",
    "failback": "control",
    "failover": "control",
    "keys": "keys",
    "list": "entities",
    "listen": "listen",
    "pause": "control",
    "peek": "messages",
    "probe": "control",
    "provision": "check",
    "purge": "purge",
    "rate": "control",
    "receive": "messages",
    "redrive": "redrive",
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

_FUNCTIONS: Final = {
    "dead-letters": "dead_letters",
    "list": "list_",
}  # whose names Python can't have


def command_named(name: str) -> click.Command:
    """Import it: no command waits for what only others need. Raises KeyError."""
    # Modules stay: to look through them for garbage takes a seventh of a start.
    gc.disable()
    try:
        module = importlib.import_module(f"gateway.commands.{COMMANDS[name]}")
        command: click.Command = getattr(module, _FUNCTIONS.get(name, name))
    finally:
        gc.enable()
    return command


def _fail_in_json(text: str, code: int) -> None:
    importlib.import_module("gateway.commands.terminal").fail(text, code, as_json=True)


class _Commands(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        """As click does it, but with `--json` a wrong usage is JSON, too."""
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
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None


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
