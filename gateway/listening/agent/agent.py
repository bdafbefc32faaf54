"""
`pairgate agent`: starts and stops local processes of `pairgate listen` by the load of their queues.

    feed      announcements of the gateway               cancelled
    └ pools   one for each of [[agent.listeners]]        drained: their processes end first

The agent holds no messages: if it is killed, its processes drain by themselves.
"""

from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.logs import Reloader
from gateway.app.operations.admin_choice import AdminChoice
from gateway.app.operations.admin_endpoint import admin_at, check_authorization
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.app.operations.targets import policy_with
from gateway.app.process import SignalWatch
from gateway.app.process_admin import ProcessAdmin, idle_control
from gateway.app.process_control import ProcessControl
from gateway.app.runtime import Runtime
from gateway.app.status.board import StatusBoard
from gateway.app.status.sections import POOLS, WAKE, readings
from gateway.app.waking import expected_wake, needs_no_gateway
from gateway.config.endpoints import AGENT
from gateway.config.file import Loaded
from gateway.config.options import Agent, AgentListener, Config
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.domain.operators.process import Workload
from gateway.frontends.admin.readiness import STARTING, Readiness
from gateway.frontends.refusals import Refusals
from gateway.listening.agent.process_pool import ProcessPool
from gateway.listening.agent.work_depth import ProcessorLoad, ScaleReader, WorkWatch
from gateway.listening.agent.worker_process import ListenerProcess, start_listener
from gateway.listening.process.feeds import stream_feeds
from gateway.listening.process.handlers import function_named
from gateway.listening.scaling.autoscaling import Autoscaler
from gateway.listening.scaling.concurrency import parse_weights
from gateway.listening.triggers import Subscription, Triggers

ACCOUNT = ""  # triggers have no account


@attrs.frozen(kw_only=True)
class AgentOptions:
    """Options of the command line; the processes get them too."""

    config: Path | None = None
    as_json: bool = False
    admin: AdminChoice = attrs.field(factory=AdminChoice)


async def run_agent(
    loaded: Loaded, runtime: Runtime, wanted: AgentOptions, reloader: Reloader | None = None
) -> None:
    """
    Run the processes of all listeners until SIGTERM or SIGINT; then drain them, and return when all
    have ended. A second signal makes them cut off running handlers.

    Raises:
        Failure: no listeners are configured, or a rule or the gateway's URL can't be used.
    """
    for warning in loaded.warnings:
        runtime.observer.report(Doubtful(text=warning))
    agent = loaded.config.agent
    if not agent.listeners:
        raise Failure(f"{loaded.source}: add [[agent.listeners]]", ExitCode.WRONG)
    _check_right(loaded.config, wanted.admin)
    keys = GatewayKeys(config=loaded.config, observer=runtime.observer)
    reader = ScaleReader(keys=keys, choice=wanted.admin)
    pools = dict(
        _make_pool(index, loaded, runtime, wanted, reader) for index in range(len(agent.listeners))
    )
    board = StatusBoard(
        config=loaded.config,
        runtime=runtime,
        refusals=Refusals(runtime.observer),
        sections=readings(
            {
                POOLS: lambda: tuple(pool.status() for pool in pools),
                WAKE: partial(expected_wake, loaded.config),
            }
        ),
    )
    readiness = Readiness(STARTING)
    steering = ProcessControl(
        observer=runtime.observer,
        readiness=readiness,
        ask_end=partial(_drain, list(pools), agent, runtime, readiness),
        work=partial(_work, list(pools)),
        reloader=reloader,
    )
    steering.on_reload(partial(_reload, keys, list(pools)))
    admin = ProcessAdmin(
        process=AGENT,
        board=board,
        control=idle_control(board),
        steering=steering,
        port_offset=wanted.admin.port_offset,
    )
    async with AsyncExitStack() as stack:
        await admin.open(stack)
        async with trio.open_nursery() as operators:
            await operators.start(admin.run)
            async with trio.open_nursery() as nursery:
                await nursery.start(SignalWatch(steering.drain, steering.reload).run)
                nursery.start_soon(_follow_triggers, runtime, reader, pools)
                async with trio.open_nursery() as working:
                    for pool in pools:
                        await working.start(pool.run)
                    readiness.begin()
                    runtime.observer.report(Started(configuration=loaded.source))
                nursery.cancel_scope.cancel()
            admin.close()


def _check_right(config: Config, choice: AdminChoice) -> None:
    """Raises Failure: there is no credential to listen to the gateway."""
    url, named = choice.url or config.agent.gateway, "--url" if choice.url else "agent.gateway"
    if url is not None:
        check_authorization(admin_at(config, url, named, choice), Right.LISTEN)
    elif config.access and choice.token is None:
        policy_with(config, "the endpoint `admin`", Right.LISTEN)


def _reload(keys: GatewayKeys, pools: list[ProcessPool], loaded: Loaded) -> None:
    keys.reload(loaded)
    for pool in pools:
        pool.reload()


def _work(pools: list[ProcessPool]) -> Workload:
    """The processes of all pools."""
    return Workload(
        unit="processes",
        done=sum(pool.ended for pool in pools),
        left=sum(pool.running for pool in pools),
    )


def _drain(
    pools: list[ProcessPool], agent: Agent, runtime: Runtime, readiness: Readiness, reason: str
) -> None:
    if readiness.is_ending:
        for pool in pools:
            pool.cut()
        return
    readiness.end(f"draining: {reason}")
    runtime.observer.report(Draining(reason=reason, seconds=agent.grace))
    for pool in pools:
        pool.drain()


def _make_pool(
    index: int, loaded: Loaded, runtime: Runtime, wanted: AgentOptions, reader: ScaleReader
) -> tuple[ProcessPool, WorkWatch]:
    config = loaded.config
    listener = config.agent.listeners[index]
    autoscaling = listener.autoscaling
    rule = autoscaling.make_rule()
    if listener.rule is not None:
        rule = function_named(listener.rule, f"agent.listeners[{index}].rule")
    watch = WorkWatch(
        reader=reader,
        queues=[EntityPath.parse(name) for name in parse_weights(listener.queues)],
        idle_interval=config.agent.idle_interval,
    )
    arguments = _arguments(config, listener, wanted)

    async def start() -> ListenerProcess:
        return await start_listener(arguments, runtime.observer)

    pool = ProcessPool(
        listener=listener.queues,
        autoscaler=Autoscaler(options=autoscaling, rule=rule, max_load=config.agent.max_load),
        options=config.agent,
        parallel=listener.parallel or config.listener.options.parallel,
        look=watch.poll,
        start=start,
        load=ProcessorLoad(),
        observer=runtime.observer,
        rng=runtime.rng(f"pool {index}"),
    )
    return pool, watch


def _arguments(config: Config, listener: AgentListener, wanted: AgentOptions) -> list[str]:
    """
    Arguments of `pairgate listen`. A gateway that is found here is the only way to the namespace.
    """
    admin = wanted.admin
    gateway = admin.url or config.agent.gateway
    hears = bool(config.listener.triggers) or needs_no_gateway(config)
    options = {
        "config": wanted.config,
        "port-offset": admin.port_offset or None,
        "ca": admin.tls.ca,
        "cert": admin.tls.certificate,
        "key": admin.tls.key,
        "user": None if admin.credentials is None else admin.credentials.partition(":")[0],
        "token-file": None if admin.token is None else admin.token.file,
        "triggers": None if hears else gateway,
        "parallel": listener.parallel,
        "to": listener.to,
        "exec": listener.exec,
        "python": listener.python,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    given += ["--wait-for-queue"]  # a new process wouldn't find the queue sooner, either
    given += ["--json"] if wanted.as_json else []
    given += ["--through-gateway"] if gateway is None else []
    return [*given, *listener.arguments, "--", *listener.queues.split()]


async def _follow_triggers(
    runtime: Runtime,
    reader: ScaleReader,
    pools: dict[ProcessPool, WorkWatch],
) -> None:
    """Announce new messages to the pool of their queue, until cancelled."""
    endpoint = await reader.endpoint()
    triggers = Triggers(is_connected=False)
    feeds = [
        kind(
            place=endpoint.place,
            authorization=partial(reader.keys.authorization, endpoint, Right.LISTEN),
            queues=list({queue for watch in pools.values() for queue in watch.queues}),
            triggers=triggers,
            account=ACCOUNT,
            observer=runtime.observer,
            rng=runtime.rng("triggers"),
        )
        for kind in stream_feeds()
    ]
    with ExitStack() as stack:
        async with trio.open_nursery() as nursery:
            for pool, watch in pools.items():
                for queue in watch.queues:
                    subscription = stack.enter_context(triggers.subscribe(ACCOUNT, queue))
                    nursery.start_soon(_announce, subscription, pool, watch, queue)
            for part in (part for feed in feeds for part in feed.parts()):
                nursery.start_soon(part.run)


async def _announce(
    subscription: Subscription, pool: ProcessPool, watch: WorkWatch, queue: EntityPath
) -> None:
    """Pass announcements on to the pool, and the loss and return of their stream."""
    while True:
        seen, was_connected = subscription.notifications, subscription.is_connected
        await subscription.wait(seen)
        if subscription.is_connected and was_connected:
            watch.announce(queue)
            pool.announce()
        else:
            if watch.is_told != subscription.is_connected:
                watch.set_announced(is_told=subscription.is_connected)
            pool.set_announced(is_told=subscription.is_connected)
