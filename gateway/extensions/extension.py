"""The parts by which a feature extends the core: what the `EXTENSION` of each folder names."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import attrs

Part = str
"""`MODULE:ATTRIBUTE`, where the module is one of the extension's package."""


@attrs.frozen
class Flag:
    """An option of `pairgate serve` without a value."""

    name: str  # without its two dashes
    help: str


@attrs.frozen(kw_only=True)
class Extension:
    """
    A feature that the core works without.

    Parts are named, not imported: a process imports a part at its first use. So it starts fast, and
    each layer of the core gets what it knows of an extension and nothing else.
    """

    package: str  # `__name__` of the extension's package
    # `gateway.extensions.tables.Table`: tables of the configuration; options of `[pairing]`, and of
    # `[[entities]]`.
    tables: Sequence[Part] = ()
    pairing: Sequence[Part] = ()
    entities: Sequence[Part] = ()
    # Functions of the file's tables and of the environment's variables that return the tables with
    # what a variable replaces.
    overrides: Sequence[Part] = ()
    # Functions of a configuration that yield its problems, each with the path of a key.
    checks: Sequence[Part] = ()
    # The same for settings that are allowed and seldom wise.
    warnings: Sequence[Part] = ()
    # Functions of a configuration and its folder that return it with derived values.
    completions: Sequence[Part] = ()
    # Functions of two configurations that return the first one with what a reload takes over from
    # the second one.
    reloads: Sequence[Part] = ()
    # Functions of a configuration: the names of namespaces that are opened as the primary is.
    namespaces: Sequence[Part] = ()
    # Functions of a configuration: the names of namespaces that only the extension uses.
    apart: Sequence[Part] = ()
    # Functions of a configuration: the files that a gateway writes, each with the path of its key.
    files: Sequence[Part] = ()
    # Functions of a configuration: the number of processes that serve a gateway's clients.
    serving: Sequence[Part] = ()
    # Functions of a configuration: True if gateways with it know each other.
    peers: Sequence[Part] = ()
    others: Sequence[Part] = ()  # `gateway.app.assembly.others.MakeOthers`
    # `open_*(config, observer)`: a context manager with a service, or None, for a process's life.
    # One that is an `OffersCalls` executes control calls.
    processes: Sequence[Part] = ()
    # `gateway.app.assembly.interceptor_rows.InterceptorRow`
    interceptors: Sequence[Part] = ()
    # `gateway.app.assembly.wrapper_rows.WrapperRow`, from the client to the pair; and those around
    # the primary, or the only namespace, which a pair has inside it.
    wrappers: Sequence[Part] = ()
    home_wrappers: Sequence[Part] = ()
    # Async functions of a configuration, a runtime and the `Findings` of `check` that add to them.
    findings: Sequence[Part] = ()
    # The same for each namespace that `check` has opened: async functions of the broker, of the
    # namespace's options, of the configuration, and of the `Findings`.
    namespace_findings: Sequence[Part] = ()
    # `gateway.app.assembly.services.ServiceRow`
    services: Sequence[Part] = ()
    # `gateway.app.succession.SuccessionRow`
    successions: Sequence[Part] = ()
    serve_flags: Sequence[Flag] = ()  # a succession learns which were given
    # `gateway.app.pools.PoolRow`
    pools: Sequence[Part] = ()
    # `gateway.wire.pairgate.control_call.ControlCall`; a feature executes it.
    calls: Sequence[Part] = ()
    # `gateway.domain.status.sections.Section`; a feature gives its value.
    sections: Sequence[Part] = ()
    # By name: the command, and the first sentence of its help.
    commands: Mapping[str, tuple[Part, str]] = attrs.field(factory=dict)
    # Functions of a `gateway.app.assembly.parts.ProcessPlan` that make a `Feature`, or None.
    features: Sequence[Part] = ()
    # `gateway.frontends.admin.routes.AdminRoutes`: paths of a gateway's endpoint `admin`.
    admin_routes: Sequence[Part] = ()
    # JavaScript modules of the operators' page, in the folder `web` of the package. The page calls
    # `start` of each, which returns an object whose `note` gets each status.
    page: Sequence[str] = ()
    # `gateway.app.waking.WakeWay`: how listeners learn of new messages.
    wakes: Sequence[Part] = ()
    # `gateway.listening.process.feeds.MakeFeeds`: triggers for a listener; and
    # `gateway.listening.process.feeds.StreamFeed`: those of one gateway's endpoint `admin`.
    feeds: Sequence[Part] = ()
    stream_feeds: Sequence[Part] = ()
    # Functions of a pair's options and of an observer that return a
    # `gateway.pairing.ways.MakesCopies`.
    second_copies: Sequence[Part] = ()
    pairs: Sequence[Part] = ()  # `gateway.pairing.additions.AddToPair`
    # Functions of a pair's options, and of queues of its primary as far as they are known: further
    # `gateway.domain.backlog.BacklogQueue`s.
    backlog_queues: Sequence[Part] = ()
    # Functions of a pair's options: True if these queues depend on what the primary lists.
    lists_primary: Sequence[Part] = ()
    # Functions of a pair's options and of its `gateway.pairing.entity_cache.EntityCache` that
    # return a `gateway.pairing.backlog.ChoosesQueue`.
    backlog_choices: Sequence[Part] = ()
    # Functions of a configuration: the entities, or patterns, for which no other extension may
    # choose a backlog queue, each with the key that names them.
    exclusive: Sequence[Part] = ()
    drains: Sequence[Part] = ()  # `gateway.pairing.syphon.drained_queue.DrainKind`

    @property
    def name(self) -> str:
        return self.package.rpartition(".")[2]

    def load(self, point: str) -> Sequence[Any]:
        """Import the parts that the extension has at this point, the name of a field."""
        return [_load(f"{self.package}.{part}") for part in getattr(self, point)]


@cache
def _load(part: str) -> Any:
    module, _, attribute = part.partition(":")
    return getattr(import_module(module), attribute)
