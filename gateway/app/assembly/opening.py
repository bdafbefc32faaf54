"""The ways in which the processes of each role open their namespaces."""

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs

from gateway.app.assembly.late_setup import LateSetup
from gateway.app.assembly.pairs import spool_queue
from gateway.app.entities import make_entities
from gateway.app.failure import Failure
from gateway.app.namespaces import check_credentials, enter, is_own
from gateway.app.runtime import Runtime
from gateway.app.spooling import enter_spool
from gateway.config.kinds import Adapter
from gateway.config.options import Config, Namespace, Pairing
from gateway.domain import backlog
from gateway.domain.errors import BrokerError
from gateway.domain.events.gateway import Doubtful
from gateway.pairing.provision import further_queues, provision
from gateway.ports import Broker, Service
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.local.hooks import LocalHooks

# The spool's name among the namespaces; the configuration can't have that name.
SPOOL: Final = "(spool)"


@attrs.define(eq=False)
class Opening:
    """
    Opens namespaces until the stack is closed, and changes nothing in them: the way of a syphon.

    Each method raises `Failure` if the namespace can't be opened.
    """

    stack: AsyncExitStack
    runtime: Runtime
    late: list[Service] = attrs.field(factory=list, init=False)  # do what is left to set up

    def announced_here(self, config: Config) -> Collection[str]:
        """The namespaces whose new messages this process announces."""
        return {config.home.name, *config.further_namespaces}

    async def enter(self, namespace: Namespace, hooks: LocalHooks | None = None) -> Adapter:
        """Open a namespace; `hooks` are for a store of this process."""
        return await enter(self.stack, namespace, self.runtime, hooks)

    async def enter_secondary(self, namespace: Namespace, pairing: Pairing) -> Adapter:
        """Open the namespace with the backlog of the pair."""
        return await self.enter(namespace)

    async def enter_spool(self, file: Path, pairing: Pairing) -> Adapter | None:
        """Open the spool of the pair; None: that is another process's."""
        return None


@attrs.define(eq=False)
class SettingUp(Opening):
    """
    The way of a gateway: what is missing is created, in stores now, in other namespaces as soon as
    they answer.

    The methods raise `Failure` also if a namespace refuses the credentials.
    """

    async def enter(self, namespace: Namespace, hooks: LocalHooks | None = None) -> Adapter:
        adapter = await Opening.enter(self, namespace, hooks)
        if is_own(namespace):
            try:
                await make_entities(adapter, namespace.plan)
            except BrokerError as error:
                raise _not_made(namespace, error) from error
            return adapter
        doubt = await check_credentials(adapter, namespace)
        if doubt is not None:
            observer = self.runtime.observer
            observer.report(Doubtful(text=f"namespace {namespace.name}: {doubt}"))
            rng = self.runtime.rng(f"late setup of {namespace.name}")
            self.late.append(
                LateSetup(broker=adapter, namespace=namespace, observer=observer, rng=rng)
            )
        return adapter

    async def enter_secondary(self, namespace: Namespace, pairing: Pairing) -> Adapter:
        adapter = await self.enter(namespace)
        if is_own(namespace):
            try:
                await provision(
                    adapter,
                    pairing.options.label,
                    pairing.options.backlog_queues,
                    backlog.properties(legacy=pairing.accept_legacy_backlog),
                    further=further_queues(pairing.options),
                )
            except BrokerError as error:
                raise _not_made(namespace, error) from error
        return adapter

    async def enter_spool(self, file: Path, pairing: Pairing) -> Adapter:
        queue, runtime = spool_queue(pairing), self.runtime
        return await enter_spool(self.stack, spool_namespace(file), queue, runtime, self.late)


@attrs.frozen(kw_only=True)
class Opened:
    """The open namespaces of a process, with nothing around them."""

    home: Adapter  # the primary, or the only namespace, or that to which a syphon moves
    secondary: Adapter | None
    spool: Adapter | None
    further: Mapping[str, Adapter]  # that extensions open as the primary
    by_name: Mapping[str, Adapter]  # all but the spool

    @property
    def stores(self) -> list[EmbeddedBroker]:
        """The namespaces with a store of their own in this process."""
        return stores_among(self.home, self.secondary, self.spool, *self.further.values())


async def open_namespaces(
    opening: Opening,
    config: Config,
    home: Namespace,
    hooks: LocalHooks,
    hooks_of_home: LocalHooks | None = None,
) -> Opened:
    """
    Open the namespaces of a process. `hooks` are those of `home`, unless it has its own, and of
    those that extensions open as the primary.

    Raises:
        Failure: a namespace can't be opened, or refuses the credentials.
    """
    pairing, by_name = config.pairing, dict[str, Adapter]()
    by_name[home.name] = await opening.enter(home, hooks_of_home or hooks)
    secondary = spool = None
    if pairing is not None:
        name = pairing.secondary
        if name not in by_name:
            by_name[name] = await opening.enter_secondary(config.namespaces[name], pairing)
        secondary = by_name[name]
        if pairing.spool is not None:
            spool = await opening.enter_spool(pairing.spool, pairing)
    # A syphon that moves elsewhere has nothing to do with what is beside the primary.
    further = config.further_namespaces if home.name == config.home.name else ()
    for name in further:
        by_name[name] = await opening.enter(config.namespaces[name], hooks)
    return Opened(
        home=by_name[home.name],
        secondary=secondary,
        spool=spool,
        further={name: by_name[name] for name in further},
        by_name=by_name,
    )


def spool_namespace(file: Path) -> Namespace:
    return Namespace(name=SPOOL, url=f"embedded:{file}")


def stores_among(*adapters: Broker | None) -> list[EmbeddedBroker]:
    """The adapters with a store of their own, which may fail for good."""
    return [adapter for adapter in adapters if isinstance(adapter, EmbeddedBroker)]


def _not_made(namespace: Namespace, error: BrokerError) -> Failure:
    return Failure(f"namespace {namespace.name}: its entities can't be created: {error}")
