"""`pairgate listen`, whose arguments override the configuration, and `pairgate agent`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import click

from gateway.app.failure import ExitCode, Failure
from gateway.app.logs import Reloader, open_log
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.typed_message import kind_of
from gateway.app.process import service_manager
from gateway.app.runtime import Runtime
from gateway.commands.admin import add_admin_access, add_gateway
from gateway.commands.place import add_body_type, complete_entity
from gateway.commands.terminal import (
    Duration,
    Integer,
    Invocation,
    add_config,
    add_json,
    failing_in_words,
    run,
)
from gateway.config.file import Loaded
from gateway.config.options import Listen
from gateway.listening.agent import agent as agents
from gateway.listening.process import process
from gateway.listening.process.handlers import HandlerChoice
from gateway.listening.process.process_one import leave_process_one

STANDARD_ERROR: Final = 2
OFF: Final = "off"


class CountOrOff(click.ParamType[int | None]):
    """A number of at least one, or `off`."""

    name = "count"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == OFF:
            return None
        text = str(value)
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            self.fail(f"a number of at least 1, or {OFF!r}, expected, found {value!r}", param, ctx)
        return int(text)


@click.command()
@add_config
@add_json
@click.argument(
    "entities",
    nargs=-1,
    required=True,
    metavar="ENTITY[:WEIGHT]...",
    shell_complete=complete_entity,
)
@click.option("--to", metavar="URL", help="Post each message to this endpoint.")
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this command for each message; its input is the body.",
)
@click.option("--python", metavar="MODULE:FUNCTION", help="Call this function, async or blocking.")
@add_body_type("Dead-letter messages whose body is something else.")
@click.option("--namespace", metavar="NAME", help="Default: the gateway here, else the primary.")
@click.option("--through-gateway", is_flag=True, help="Never connect to the primary directly.")
@click.option("--wait-for-queue", "waits_for_queue", is_flag=True, help="Wait for a missing queue.")
@click.option("--report", type=Integer(3), hidden=True, help="A socket of the agent.")
@click.option("--metrics", metavar="HOST:PORT", help="Open an endpoint `admin` at this address.")
@click.option(
    "--triggers", metavar="URL", multiple=True, help="An admin endpoint that sends triggers."
)
@click.option("--tasks", type=Integer(1), help="Receiving tasks per queue at the start.")
@click.option("--max-tasks", type=Integer(1), help="Most receiving tasks per queue.")
@click.option("--batch", type=Integer(1, 1000), help="Most messages of one receive.")
@click.option("--parallel", type=Integer(1), help="Most handlers at once.")
@click.option(
    "--poison-after",
    "poison_threshold",
    type=CountOrOff(),
    help="Attempts before a message is poison, or off.",
)
@click.option(
    "--timeout",
    type=Duration(above_zero=True),
    help="Timeout of one call of the endpoint or command.",
)
@click.option("--grace", type=Duration(), help="Time for handlers to finish in a drain.")
@failing_in_words
@add_admin_access
def listen(
    invocation: Invocation, entities: tuple[str, ...], admin: AdminChoice, **given: Any
) -> None:
    """
    Run a handler for each message of each ENTITY, until SIGTERM or Ctrl-C.

    A message is completed when its handler has succeeded; after a failure it is delivered again,
    and dead-lettered after too many. WEIGHT is a queue's share of the handlers.

    Exit code 1: a queue is missing.
    """
    leave_process_one()
    loaded = invocation.read()
    own = ("namespace", "through_gateway", "waits_for_queue", "report")
    places = {name: given.pop(name) for name in own}
    named = {name: given.pop(name) for name in ("to", "command", "python", "schema")}
    named["kind"] = kind_of(given.pop("kind"), named["schema"])
    section = _with(loaded.config.listener, given)
    wanted = process.ProcessOptions(
        queues=" ".join(entities),
        handler=HandlerChoice(**named, timeout=section.handler_timeout),
        options=section.options,
        triggers=section.triggers,
        metrics=section.metrics,
        admin=admin,
        **places,
    )
    with _opened(invocation, loaded) as (runtime, reloader):
        run(process.listen, loaded, runtime, wanted, reloader)


@click.command()
@add_config
@add_json
@failing_in_words
@add_gateway
def agent(invocation: Invocation, admin: AdminChoice) -> None:
    """
    Start and stop processes of `listen` as [[agent.listeners]] says, until SIGTERM or Ctrl-C.

    Their number follows the queues' depth and age, the handlers' time and the processors' load.
    """
    leave_process_one()
    loaded = invocation.read()
    wanted = agents.AgentOptions(config=invocation.config, as_json=invocation.as_json, admin=admin)
    with _opened(invocation, loaded) as (runtime, reloader):
        run(agents.run_agent, loaded, runtime, wanted, reloader)


@contextmanager
def _opened(invocation: Invocation, loaded: Loaded) -> Iterator[tuple[Runtime, Reloader]]:
    """Open the log and the connection to the service manager, if one has started this process."""
    with (
        open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log,
        service_manager(log, os.environ) as manager,
    ):
        runtime = Runtime(observer=manager, service_manager=manager)
        yield runtime, Reloader(loaded, log, invocation.read, manager)


def _with(section: Listen, given: dict[str, Any]) -> Listen:
    """The configured options, overridden by those of the command line."""
    context = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    own = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is not default
    }
    try:
        return attrs.evolve(
            section,
            handler_timeout=own.pop("timeout", section.handler_timeout),
            triggers=own.pop("triggers", section.triggers),
            metrics=own.pop("metrics", section.metrics),
            options=attrs.evolve(section.options, **own),
        )
    except ValueError as error:
        raise Failure(f"options: {error}", ExitCode.WRONG) from error
