"""
`pairgate agent`: starts and stops local processes of `pairgate listen`, as their work needs.

    feed      what the gateway announces             cancelled
    └ crews   one for each of [[agent.listeners]]    drained: their processes end first

What runs here holds no message: it may be killed, and its processes drain by themselves.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs
import trio

from gateway.app.crew import Crew, Work
from gateway.app.failure import ExitCode, Failure
from gateway.app.handlers import function_named
from gateway.app.listener_process import ListenerProcess, start_listener
from gateway.app.outside import Outside
from gateway.app.scale import ProcessorLoad, ScaleReader
from gateway.app.serving import watch_signals
from gateway.app.targets import admin_authorization, admin_place
from gateway.app.trigger_feed import TriggerFeed
from gateway.config.file import Loaded
from gateway.config.options import Agent, AgentListener, Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.events import Doubtful, Draining, Started
from gateway.domain.scaling import parse_weights
from gateway.domain.staffing import Staffing
from gateway.listener.triggers import Subscription, Triggers

ACCOUNT = ""  # triggers have none


@attrs.frozen(kw_only=True)
class Wanted:
    """What the command line says; the processes get it too."""

    config: Path | None = None
    as_json: bool = False
    port_offset: int = 0


async def run_agent(loaded: Loaded, outside: Outside, wanted: Wanted) -> None:
    """
    Keep the processes of all listeners until SIGTERM or SIGINT; then have them drain, and return
    when all have ended. A second one has them cut what still runs.

    Raises:
        Failure: there are no listeners, or a rule or the gateway's URL can't be used.
    """
    for warning in loaded.warnings:
        outside.observer.report(Doubtful(text=warning))
    agent = loaded.config.agent
    if not agent.listeners:
        raise Failure(f"{loaded.source}: add [[agent.listeners]]", ExitCode.WRONG)
    if agent.gateway is not None:
        admin_place(agent.gateway, "agent.gateway")
    admin_authorization(loaded.config, "the endpoint `admin`", Right.LISTEN)
    reader = ScaleReader(config=loaded.config, port_offset=wanted.port_offset)
    crews = dict(
        _make_crew(index, loaded, outside, wanted, reader) for index in range(len(agent.listeners))
    )
    async with trio.open_nursery() as nursery:
        end = partial(_end, list(crews), agent, outside, trio.Event())
        await nursery.start(partial(watch_signals, end, lambda: None))
        nursery.start_soon(_follow_triggers, loaded, outside, reader, crews)
        async with trio.open_nursery() as working:
            for crew in crews:
                await working.start(crew.run)
            outside.observer.report(Started(configuration=loaded.source, seed=outside.seed))
        nursery.cancel_scope.cancel()


def _end(crews: list[Crew], agent: Agent, outside: Outside, asked: trio.Event, reason: str) -> None:
    if asked.is_set():
        for crew in crews:
            crew.cut()
        return
    asked.set()
    outside.observer.report(Draining(reason=reason, seconds=agent.grace))
    for crew in crews:
        crew.drain()


def _make_crew(
    index: int, loaded: Loaded, outside: Outside, wanted: Wanted, reader: ScaleReader
) -> tuple[Crew, list[EntityPath]]:
    config = loaded.config
    listener = config.agent.listeners[index]
    staffing = listener.staffing
    rule = staffing.make_rule()
    if listener.rule is not None:
        rule = function_named(listener.rule, f"agent.listeners[{index}].rule")
    queues = [EntityPath.parse(name) for name in parse_weights(listener.queues)]
    arguments = _arguments(config, listener, wanted)

    async def look() -> Work:
        return await reader.look(queues)

    async def start() -> ListenerProcess:
        return await start_listener(arguments, outside.observer)

    crew = Crew(
        listener=listener.queues,
        staffing=Staffing(options=staffing, rule=rule, max_load=config.agent.max_load),
        options=config.agent,
        parallel=listener.parallel or config.listener.options.parallel,
        look=look,
        start=start,
        load=ProcessorLoad(),
        observer=outside.observer,
        rng=outside.rng(f"crew {index}"),
    )
    return crew, queues


def _arguments(config: Config, listener: AgentListener, wanted: Wanted) -> list[str]:
    """Of `pairgate listen`. A gateway that is found here is the only way in."""
    gateway = config.agent.gateway
    hears = bool(config.listener.triggers) or config.triggers is not None
    options = {
        "config": wanted.config,
        "port-offset": wanted.port_offset or None,
        "triggers": None if hears else gateway,
        "parallel": listener.parallel,
        "to": listener.to,
        "exec": listener.exec,
        "python": listener.python,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    given += ["--json"] if wanted.as_json else []
    given += ["--through-gateway"] if gateway is None else []
    return [*given, *listener.arguments, "--", *listener.queues.split()]


async def _follow_triggers(
    loaded: Loaded,
    outside: Outside,
    reader: ScaleReader,
    crews: dict[Crew, list[EntityPath]],
) -> None:
    """Announce to each crew what comes to its queues. Lives until cancelled."""
    place = await reader.place()
    triggers = Triggers(is_connected=False)
    feed = TriggerFeed(
        place=place,
        authorization=admin_authorization(loaded.config, str(place), Right.LISTEN),
        queues=list({queue for queues in crews.values() for queue in queues}),
        triggers=triggers,
        account=ACCOUNT,
        observer=outside.observer,
        rng=outside.rng("triggers"),
    )
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for crew, queues in crews.items():
                for queue in queues:
                    bell = stack.enter_context(triggers.subscribe(ACCOUNT, queue))
                    nursery.start_soon(_announce, bell, crew)
            await feed.run()


async def _announce(bell: Subscription, crew: Crew) -> None:
    """A bell rings for what comes, and when the stream breaks or is back."""
    while True:
        seen, was_connected = bell.rings, bell.is_connected
        await bell.wait(seen)
        if bell.is_connected and was_connected:
            crew.announce()
        else:
            crew.tell(is_told=bell.is_connected)
