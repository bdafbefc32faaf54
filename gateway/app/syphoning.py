"""`pairgate syphon`: the syphon alone, beside the receivers or to empty a backlog elsewhere."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.namespaces import enter
from gateway.app.outside import Outside
from gateway.app.pairs import make_envelope
from gateway.app.parts import announced, make_announcers, stores_among
from gateway.app.serving import watch_signals, watch_store
from gateway.config.file import Loaded
from gateway.domain.events import Doubtful, Draining, Started
from gateway.frontends.announcements import Announcements
from gateway.pairing.syphon import Syphon
from gateway.ports import Broker, Service


async def syphon(
    loaded: Loaded,
    outside: Outside,
    *,
    label: str | None = None,
    to: str | None = None,
) -> None:
    """
    Move the backlog of `label` from the secondary to the namespace `to`, until SIGTERM or SIGINT.

    Without them: the pair's own label, to its primary.

    Raises:
        Failure: there is no pair or no such namespace, or one can't be opened.
    """
    config, pairing = loaded.config, loaded.config.pairing
    if pairing is None:
        raise Failure(f"{loaded.source}: a syphon needs [pairing]", ExitCode.WRONG)
    target = to or pairing.primary
    if target not in config.namespaces:
        known = ", ".join(sorted(config.namespaces))
        raise Failure(f"there is no namespace {target!r}; there are {known}", ExitCode.WRONG)
    for warning in loaded.warnings:
        outside.observer.report(Doubtful(text=warning))
    label = label or pairing.options.label
    async with AsyncExitStack() as stack:
        source = await enter(stack, config.namespaces[pairing.secondary], outside)
        primary: Broker = source
        if target != pairing.secondary:
            primary = await enter(stack, config.namespaces[target], outside)
        announcements, announcers = Announcements(), list[Service]()
        if target == pairing.primary:  # listeners of another namespace are nobody's matter here
            keepers = {pairing.secondary: source, target: primary}
            announcers = await make_announcers(stack, config, outside, announcements, keepers)
            primary = announced(primary, announcements) if announcers else primary
        service = Syphon(
            primary=primary,
            source=source,
            label=label,
            options=pairing.syphon,
            envelope=make_envelope(pairing, label),
            clock=outside.now,
            rng=outside.rng("syphon"),
            observer=outside.observer,
        )
        failures: list[Failure] = []
        await _run(service, announcers, loaded, outside, failures.append)
    if failures:
        raise failures[0]


async def _run(
    service: Syphon,
    announcers: Sequence[Service],
    loaded: Loaded,
    outside: Outside,
    fail: Callable[[Failure], None],
) -> None:
    async with trio.open_nursery() as nursery:

        def end(reason: str) -> None:
            outside.observer.report(Draining(reason=reason, seconds=0.0))
            nursery.cancel_scope.cancel()

        def give_up(failure: Failure) -> None:
            fail(failure)
            nursery.cancel_scope.cancel()

        for store in stores_among(service.primary, service.source):
            nursery.start_soon(watch_store, store, give_up)
        await nursery.start(partial(watch_signals, end, lambda: None))
        for announcer in announcers:
            await nursery.start(announcer.run)
        await nursery.start(service.run)
        outside.observer.report(Started(configuration=loaded.source, seed=outside.seed))
