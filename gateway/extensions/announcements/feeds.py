"""
Feeds that bring triggers to `pairgate listen`: a topic, or streams of gateways' announcements.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import attrs

from gateway.app.namespaces import enter
from gateway.app.operations.admin_endpoint import (
    AdminEndpoint,
    admin_at,
    check_authorization,
    find_admin,
)
from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.app.operations.targets import OpenNamespace
from gateway.app.operations.ways_in import find_way_in
from gateway.app.runtime import Runtime
from gateway.domain.access import Right
from gateway.domain.entity import EntityPath
from gateway.extensions.announcements.options import TRIGGERS, TriggerTopic
from gateway.extensions.announcements.trigger_feed import TriggerFeed
from gateway.extensions.announcements.trigger_topic import TopicFeed
from gateway.listening.listener import QueueListener
from gateway.listening.process.feeds import TriggerSource
from gateway.ports import Broker, Service

# between two receives of a namespace that must be polled, unless its options set it
POLL_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 30.0  # for the namespace's answer to arrive


async def make_feeds(
    stack: AsyncExitStack,
    keys: GatewayKeys,
    runtime: Runtime,
    target: OpenNamespace,
    listener: QueueListener[Any],
    source: TriggerSource,
) -> Sequence[Service]:
    """
    The feeds of the listener's triggers, not running yet. Without any, idle queues of namespaces
    that don't push are polled.

    Raises:
        Failure: a URL is invalid, the topic's namespace can't be opened, or no configured key has
            the required right.
    """
    config = keys.config
    triggers = config.of(TRIGGERS)
    if triggers is not None and not source.urls:
        broker, silence = await _keeper(stack, keys, triggers, runtime, target, source)
        return [_topic_feed(broker, triggers, runtime, listener, silence)]
    admins = [admin_at(config, url, "--triggers", source.admin) for url in source.urls]
    if not admins and target.running:
        found = await find_admin(config, source.admin)
        admins = [] if found is None else [found]
    return [feed for each in admins for feed in _stream_feeds(each, keys, runtime, listener)]


def _stream_feeds(
    admin: AdminEndpoint, keys: GatewayKeys, runtime: Runtime, listener: QueueListener[Any]
) -> Sequence[TriggerFeed]:
    check_authorization(admin, Right.LISTEN)
    assert listener.triggers is not None, "the listener has triggers"
    feed = TriggerFeed(
        place=admin.place,
        authorization=partial(keys.authorization, admin, Right.LISTEN),
        queues=list(listener.queues),
        triggers=listener.triggers,
        account=listener.account,
        observer=runtime.observer,
        rng=runtime.rng(f"triggers/{admin}"),
    )
    return feed.parts()


def _topic_feed(
    broker: Broker,
    settings: TriggerTopic,
    runtime: Runtime,
    listener: QueueListener[Any],
    silence: float,
) -> TopicFeed:
    assert listener.triggers is not None, "the listener has triggers"
    return TopicFeed(
        broker=broker,
        topic=EntityPath(settings.topic),
        queues=list(listener.queues),
        triggers=listener.triggers,
        account=listener.account,
        observer=runtime.observer,
        rng=runtime.rng("triggers"),
        new_id=runtime.new_id,
        silence=silence,
    )


async def _keeper(
    stack: AsyncExitStack,
    keys: GatewayKeys,
    settings: TriggerTopic,
    runtime: Runtime,
    target: OpenNamespace,
    source: TriggerSource,
) -> tuple[Broker, float]:
    """
    The namespace with the topic, and the seconds of silence after which it counts as failed. If a
    gateway runs, it is the primary through that gateway, since only the gateway may have its store
    open.
    """
    config = keys.config
    name = settings.namespace or config.home.name
    namespace = config.namespaces[name]
    if name == target.home and not target.running:
        broker = target.broker
    else:
        way = await find_way_in(
            config,
            Right.MANAGE,
            port_offset=source.admin.port_offset,
            tls=source.admin.tls,
        )
        if name == config.home.name and way is not None:
            # The listener may use the same gateway, with figures of its own.
            namespace = attrs.evolve(way, name=f"{way.name}, for triggers")
        broker = await enter(stack, namespace, runtime)
        if name == config.home.name and way is not None:
            keys.keep(broker, namespace.name, Right.MANAGE)
    poll: float = getattr(namespace.options, "receive_poll", POLL_SECONDS)
    return broker, poll + GRACE_SECONDS
