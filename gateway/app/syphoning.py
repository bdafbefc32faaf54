"""
`pairgate syphon`: a syphon as its own process, beside the gateways or to empty a backlog elsewhere.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.identities import find_destination
from gateway.app.namespaces import enter
from gateway.app.pairs import make_envelope
from gateway.app.parts import announced, make_announcers, stores_among, watch
from gateway.app.runtime import Runtime
from gateway.app.serving import watch_signals, watch_store
from gateway.brokers.embedded.broker import EmbeddedBroker
from gateway.config.file import Loaded
from gateway.domain.events.gateway import Doubtful, Draining, Started
from gateway.frontends.admin.announcements import Announcements
from gateway.pairing.syphon.syphon import Syphon
from gateway.ports import Broker, Service


async def syphon(
    loaded: Loaded,
    runtime: Runtime,
    *,
    label: str | None = None,
    to: str | None = None,
    adopted: Collection[str] = (),
) -> None:
    """
    Move the backlog of `label` from the secondary to the namespace `to`, until SIGTERM or SIGINT.

    Defaults are the pair's own label and its primary; then messages for another primary stay,
    unless its fingerprint is in `adopted`. A namespace `to` accepts all messages.

    Raises:
        Failure: there is no pair or no such namespace, or a namespace can't be opened.
    """
    config, pairing = loaded.config, loaded.config.pairing
    if pairing is None:
        raise Failure(f"{loaded.source}: pairgate syphon needs [pairing]", ExitCode.WRONG)
    target = to or pairing.primary
    if target not in config.namespaces:
        known = ", ".join(sorted(config.namespaces))
        raise Failure(f"there is no namespace {target!r}; configured are {known}", ExitCode.WRONG)
    for warning in loaded.warnings:
        runtime.observer.report(Doubtful(text=warning))
    label = label or pairing.options.label
    async with AsyncExitStack() as stack:
        source = await enter(stack, config.namespaces[pairing.secondary], runtime)
        primary: Broker = source
        if target != pairing.secondary:
            primary = await enter(stack, config.namespaces[target], runtime)
        announcements, announcers = Announcements(), list[Service]()
        if target == pairing.primary:  # listeners of any other namespace aren't informed
            keepers = {pairing.secondary: source, target: primary}
            announcers = await make_announcers(stack, config, runtime, announcements, keepers)
            primary = announced(primary, announcements) if announcers else primary
        seen = watch(primary, config.namespaces[target], runtime)
        destination = await find_destination(
            config, pairing, seen, runtime, adopted=adopted, name=target
        )
        destination.takes_all = to is not None
        stores = stores_among(primary, source)
        service = Syphon(
            primary=seen,
            source=watch(source, config.namespaces[pairing.secondary], runtime),
            label=label,
            options=pairing.syphon,
            envelope=make_envelope(pairing, label, makes_key=runtime.makes_stores),
            clock=runtime.now,
            rng=runtime.rng("syphon"),
            observer=runtime.observer,
            destination=destination,
        )
        failures: list[Failure] = []
        await _run(service, stores, announcers, loaded, runtime, failures.append)
    if failures:
        raise failures[0]


async def _run(
    service: Syphon,
    stores: Sequence[EmbeddedBroker],
    announcers: Sequence[Service],
    loaded: Loaded,
    runtime: Runtime,
    fail: Callable[[Failure], None],
) -> None:
    async with trio.open_nursery() as nursery:

        def end(reason: str) -> None:
            runtime.observer.report(Draining(reason=reason, seconds=0.0))
            nursery.cancel_scope.cancel()

        def give_up(failure: Failure) -> None:
            fail(failure)
            nursery.cancel_scope.cancel()

        for store in stores:
            nursery.start_soon(watch_store, store, give_up)
        await nursery.start(partial(watch_signals, end, lambda: None))
        for announcer in announcers:
            await nursery.start(announcer.run)
        await nursery.start(service.run)
        runtime.observer.report(Started(configuration=loaded.source))
