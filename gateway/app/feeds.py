"""What brings triggers to `pairgate listen`: a topic, or streams of gateways' announcements."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import attrs
import trio

from gateway.app.namespaces import enter
from gateway.app.outside import Outside
from gateway.app.targets import (
    Target,
    admin_authorization,
    admin_place,
    find_admin,
    find_running,
    through,
)
from gateway.app.trigger_feed import TriggerFeed
from gateway.app.trigger_topic import TopicFeed
from gateway.config.options import Config, TriggerTopic
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.listener.listener import QueueListener
from gateway.net.dialing import Place
from gateway.ports import Broker, Service

POLL_SECONDS: Final = 60.0  # of a namespace that must be asked, where its options don't say
GRACE_SECONDS: Final = 30.0  # for its answer to come


@attrs.frozen(kw_only=True)
class Source:
    """What the command line says; without URLs it's `[triggers]`, else the gateway found here."""

    urls: tuple[str, ...] = ()
    port_offset: int = 0


async def make_feeds(
    stack: AsyncExitStack,
    config: Config,
    outside: Outside,
    target: Target,
    listener: QueueListener[Any],
    source: Source,
) -> Sequence[Service]:
    """
    What calls the listener's triggers, not running yet; none: idle queues that don't push are
    polled.

    Raises:
        Failure: a URL is none, the namespace of the topic can't be opened, or there is no key with
            the right that is needed.
    """
    await trio.lowlevel.checkpoint()
    if config.triggers is not None and not source.urls:
        broker, silence = await _keeper(stack, config, config.triggers, outside, target, source)
        return [_topic_feed(broker, config.triggers, outside, listener, silence)]
    places = [admin_place(url, "--triggers") for url in source.urls]
    if not places and target.running:
        address = await find_admin(config, source.port_offset)
        places = [] if address is None else [admin_place(f"http://{address}", address)]
    return [_stream_feed(place, config, outside, listener) for place in places]


def _stream_feed(
    place: Place, config: Config, outside: Outside, listener: QueueListener[Any]
) -> TriggerFeed:
    assert listener.triggers is not None, "it was made with them"
    return TriggerFeed(
        place=place,
        authorization=admin_authorization(config, str(place), Right.LISTEN),
        queues=list(listener.queues),
        triggers=listener.triggers,
        account=listener.account,
        observer=outside.observer,
        rng=outside.rng(f"triggers/{place}"),
    )


def _topic_feed(
    broker: Broker,
    settings: TriggerTopic,
    outside: Outside,
    listener: QueueListener[Any],
    silence: float,
) -> TopicFeed:
    assert listener.triggers is not None, "it was made with them"
    return TopicFeed(
        broker=broker,
        topic=EntityPath(settings.topic),
        queues=list(listener.queues),
        triggers=listener.triggers,
        account=listener.account,
        observer=outside.observer,
        rng=outside.rng("triggers"),
        new_id=outside.new_id,
        silence=silence,
    )


async def _keeper(
    stack: AsyncExitStack,
    config: Config,
    settings: TriggerTopic,
    outside: Outside,
    target: Target,
    source: Source,
) -> tuple[Broker, float]:
    """
    The namespace that keeps the topic, and after how many seconds of silence it is given up: the
    primary through the gateway where one runs, since only that may have its store open.
    """
    await trio.lowlevel.checkpoint()
    name = settings.namespace or config.home.name
    namespace = config.namespaces[name]
    if name == target.home and not target.running:
        broker = target.broker
    else:
        address = await find_running(config, source.port_offset)
        if name == config.home.name and address is not None:
            namespace = through(config, address, Right.MANAGE)
            # The listener may go through it too, and has figures of its own.
            namespace = attrs.evolve(namespace, name=f"{namespace.name}, for triggers")
        broker = await enter(stack, namespace, outside)
    poll: float = getattr(namespace.options, "receive_poll", POLL_SECONDS)
    return broker, poll + GRACE_SECONDS
