"""`pairgate listen`, with arguments that outdo those of the configuration, and `pairgate agent`."""

from typing import Any, Final

import attrs
import click

from gateway.app import agent as agents
from gateway.app import listening
from gateway.app.failure import ExitCode, Failure
from gateway.app.handlers import HandlerChoice
from gateway.app.logs import open_log
from gateway.app.outside import Outside
from gateway.commands.terminal import (
    Duration,
    Invocation,
    add_config,
    add_json,
    failing_in_words,
    run,
)
from gateway.config.options import Listen

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
@click.argument("entities", nargs=-1, required=True, metavar="ENTITY[:WEIGHT]...")
@click.option("--to", metavar="URL", help="Post each message to this endpoint.")
@click.option("--exec", "command", metavar="COMMAND", help="Run this, the body as its input.")
@click.option("--python", metavar="MODULE:FUNCTION", help="Call this, async or blocking.")
@click.option("--namespace", metavar="NAME", help="Default: the gateway here, else the primary.")
@click.option("--port-offset", type=int, default=0, metavar="N", help="Move all ports by N.")
@click.option("--through-gateway", is_flag=True, help="Not straight into the primary without one.")
@click.option("--report", type=click.IntRange(3), hidden=True, help="A socket of `agent`.")
@click.option("--metrics", metavar="HOST:PORT", help="Tell figures at /metrics and /status there.")
@click.option("--triggers", metavar="URL", multiple=True, help="An admin endpoint that announces.")
@click.option("--tasks", type=click.IntRange(1), help="That take messages, at the start.")
@click.option("--max-tasks", type=click.IntRange(1), help="When there is work for them.")
@click.option("--batch", type=click.IntRange(1, 1000), help="Messages of one request.")
@click.option("--parallel", type=click.IntRange(1), help="Handlers that run at once.")
@click.option("--poison-after", "poison_threshold", type=CountOrOff(), help="Attempts, or off.")
@click.option("--timeout", type=Duration(), help="Of one call of the endpoint or command.")
@click.option("--grace", type=Duration(), help="For handlers to finish in, at the end.")
@failing_in_words
def listen(invocation: Invocation, entities: tuple[str, ...], **given: Any) -> None:
    """
    Run a handler for each message of each ENTITY, until SIGTERM or Ctrl-C.

    A message is completed when its handler has done it; what failed comes again, and is
    dead-lettered when it has failed too often. Of several queues, WEIGHT is the share.
    """
    loaded = invocation.read()
    own = ("namespace", "port_offset", "through_gateway", "report")
    places = {name: given.pop(name) for name in own}
    named = {name: given.pop(name) for name in ("to", "command", "python")}
    section = _with(loaded.config.listener, given)
    wanted = listening.Wanted(
        queues=" ".join(entities),
        handler=HandlerChoice(**named, timeout=section.handler_timeout),
        options=section.options,
        triggers=section.triggers,
        metrics=section.metrics,
        **places,
    )
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        run(listening.listen, loaded, Outside(observer=log), wanted)


@click.command()
@add_config
@add_json
@click.option("--port-offset", type=int, default=0, metavar="N", help="Move all ports by N.")
@failing_in_words
def agent(invocation: Invocation, port_offset: int) -> None:
    """
    Start and stop processes of `listen`, as [[agent.listeners]] says, until SIGTERM or Ctrl-C.

    The queues' depth and age, the handlers' time and the processors' load say how many there are.
    """
    loaded = invocation.read()
    wanted = agents.Wanted(
        config=invocation.config, as_json=invocation.as_json, port_offset=port_offset
    )
    with open_log(loaded, STANDARD_ERROR, as_json=invocation.as_json) as log:
        run(agents.run_agent, loaded, Outside(observer=log), wanted)


def _with(section: Listen, given: dict[str, Any]) -> Listen:
    """The configured options, but for those that the command line has."""
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
