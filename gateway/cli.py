"""The command line: the module of each command, which has its arguments and exit codes."""

import gc
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.extensions.listing import commands, extensions, summaries

_OF_CORE: Final[Mapping[str, tuple[str, str]]] = {
    # By command: its module in `gateway.commands`, and the first sentence of its help, so that a
    # list of commands imports none of them.
    "agent": (
        "listen",
        "Start and stop processes of `listen` as [[agent.listeners]] says,"
        " until SIGTERM or Ctrl-C.",
    ),
    "bench": ("bench", "Send messages to QUEUE and receive them, and show rates and latencies."),
    "certs": (
        "trial",
        "Create a throw-away authority in DIR, with certificates for localhost and a client.",
    ),
    "check": ("check", "Check the configuration, connect to everything, and print the findings."),
    "completion": (
        "completion",
        "Print a script that completes commands, options and names of entities in SHELL.",
    ),
    "config": (
        "config",
        "Print a complete configuration, make a new one, or show the one in effect.",
    ),
    "create": ("entities", "Create a queue, a topic or a subscription."),
    "delete": ("entities", "Delete a queue, a topic or a subscription, with its messages."),
    "demo": (
        "trial",
        "Show a failover: producers, an outage, the backlog, the syphon, and"
        " the checker's verdict.",
    ),
    "drain": (
        "process",
        "End the running gateway as SIGTERM does: accept nothing more, finish, end.",
    ),
    "events": (
        "events",
        "Show the last events of the running gateway, one a line, with --json as JSON.",
    ),
    "failback": (
        "control",
        "Return entities to the primary: pinned ones, and those that failed over by themselves.",
    ),
    "failover": (
        "control",
        "Pin entities to the backlog, until `failback` or the end that --until names.",
    ),
    "keys": ("keys", "Change the keys of clients and of the envelope."),
    "list": (
        "entities:list_",
        "List queues, topics and subscriptions with their counts, whose names start with PREFIX.",
    ),
    "listen": ("listen", "Run a handler for each message of each ENTITY, until SIGTERM or Ctrl-C."),
    "pause": (
        "control",
        "Pause the syphon of the gateway, until `resume` or the end that --until names.",
    ),
    "peek": ("messages", "Print messages of ENTITY without locking them."),
    "probe": (
        "control",
        "Probe entities that have failed over, or are in doubt, on the primary now.",
    ),
    "provision": ("check", "Create missing backlog queues and configured queues."),
    "rate": (
        "control",
        "Limit the syphon of the gateway to RATE messages a second, until it ends.",
    ),
    "receive": ("messages", "Receive messages from ENTITY, print and complete them."),
    "reload": ("process", "Let the running gateway read its configuration again, as SIGHUP does."),
    "resume": (
        "control",
        "Resume the syphon of the gateway: for everything, or for what the arguments name.",
    ),
    "send": (
        "messages",
        "Send one message to ENTITY; without BODY, the body is read from standard input.",
    ),
    "serve": (
        "serve",
        "Serve clients until SIGTERM or Ctrl-C, then drain; a second signal ends it at once.",
    ),
    "status": ("status", "Show the state of the running gateway, or of the one at --url."),
    "store": ("store", "Maintain an embedded store."),
    "syphon": (
        "serve",
        "Move the backlog from the secondary to its destination, and do nothing else.",
    ),
    "token": ("token", "Print a shared access signature for ENTITY, or for all entities."),
    "trigger": (
        "messages",
        "Tell the listeners of QUEUE of a message that didn't come through the gateway.",
    ),
}
# By command: its module, and its name in the module where that differs.
COMMANDS: Final[Mapping[str, str]] = dict(
    sorted(
        (
            *((name, f"gateway.commands.{module}") for name, (module, _) in _OF_CORE.items()),
            *commands().items(),
        )
    )
)


# Options by which a command finds its configuration, its gateway or a namespace.
_OF_CONNECTION: Final = frozenset(
    (
        *("--config", "--json", "--url", "--ca", "--cert", "--key", "--user", "--token-file"),
        *("--port-offset", "--namespace", "--process"),
    )
)


def _place_of(name: str) -> str:
    """The command's module and name there; empty: there is no such command."""
    return COMMANDS.get(name) or commands(extensions()).get(name, "")


def summary_of(name: str) -> str:
    """The first sentence of the command's help."""
    return _OF_CORE[name][1] if name in _OF_CORE else summaries(extensions()).get(name, "")


def command_named(name: str) -> click.Command:
    """
    Import and return the command, so that no command waits for the imports of others. Raises
    KeyError.
    """
    place = _place_of(name)
    if not place:
        raise KeyError(name)
    module, _, attribute = place.partition(":")
    if module not in sys.modules:
        _import_without_collections(module)
    command: click.Command = getattr(sys.modules[module], attribute or name)
    _arrange(command)
    return command


def _import_without_collections(module: str) -> None:
    """
    Import it. Modules are never garbage: collections that search them take a seventh of the
    imports, and a quarter of what a gateway does then until it serves.
    """
    gc.disable()
    try:
        importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def _arrange(command: click.Command) -> None:
    """Show the options of the command before those of the connection, which many have."""
    command.params.sort(key=lambda each: each.opts[0] in _OF_CONNECTION)
    if isinstance(command, click.Group):
        for part in command.commands.values():
            _arrange(part)


def _guidance() -> Any:
    """Help for people: a module that a command which works doesn't import."""
    return importlib.import_module("gateway.commands.guidance")


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        _guidance().write_commands(formatter, {name: summary_of(name) for name in names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command's name and summary: for the list of commands, and for a completion."""
        if not _place_of(cmd_name):
            return None
        return click.Command(cmd_name, help=summary_of(cmd_name), add_help_option=False)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not _place_of(args[0]) and not args[0].startswith("-"):
            hint = _guidance().hint(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        found = command_named(name)
        if not {"-h", "--help"}.isdisjoint(rest):
            _guidance().add_examples(found, name)
        return name, found, rest


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
    """
    A messaging gateway that pairs two namespaces, so that a producer notices no outage.

    `pairgate COMMAND --help` has the options of a command, and an example. To begin: `pairgate
    serve --queue orders`, and in another terminal `pairgate send orders hello`.
    """
