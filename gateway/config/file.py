"""Finds and reads the configuration file, and completes it with derived values."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gateway.config.checks import problems_of, warnings_of
from gateway.config.endpoints import RABBITMQ, STORAGE_QUEUE
from gateway.config.errors import ConfigError
from gateway.config.given import with_binds, with_queues
from gateway.config.options import Config, Namespace, Pairing
from gateway.config.places import absolute, authority_of, label_of, location_of, scheme_of
from gateway.config.reading import structure
from gateway.config.secrets import SecretSource
from gateway.config.source import Source, find_source, tables_of
from gateway.domain.entity import EntityPath
from gateway.domain.plan import Plan, PlannedQueue
from gateway.extensions.listing import parts
from gateway.net import unix
from gateway.pairing.options import Oversized
from gateway.wire.servicebus.emulator_config import MAX_BYTES, parse_emulator_config


def read_plan(namespace: Namespace) -> tuple[Plan, list[str]]:
    """The plan, and a line for each error in the file; each line begins with `entities`."""
    plan, problems = _plan_of_file(namespace)
    there = {queue.path for queue in plan.queues}
    paths = [EntityPath(name) for name in namespace.queues]
    more = (PlannedQueue(path=path) for path in paths if path not in there)
    return Plan(queues=(*plan.queues, *more), topics=plan.topics), problems


def _plan_of_file(namespace: Namespace) -> tuple[Plan, list[str]]:
    file = namespace.entities
    if file is None:
        return Plan(), []
    try:
        with file.open("rb") as opened:
            body = opened.read(MAX_BYTES + 1)
    except OSError as error:
        return Plan(), [f"entities: {file}: {error.strerror}"]
    plan, problems = parse_emulator_config(body)
    return plan, [f"entities: {file.name}: {problem}" for problem in problems]


@attrs.frozen(kw_only=True)
class Loaded:
    """A valid configuration, its source, and warnings about it."""

    config: Config
    source: str
    folder: Path
    text: str = attrs.field(default="", repr=False)
    binds: tuple[str, ...] = ()  # with which the text was read
    warnings: tuple[str, ...] = ()


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    here: Path,
    binds: Sequence[str] = (),
    queues: Sequence[str] = (),
    secrets: Collection[str] | None = None,
) -> Loaded:
    """
    Read the given file; without it `pairgate.toml` in the folder `here`, else the embedded default.
    `binds` are addresses of endpoints for `with_binds`, `queues` names for `with_queues`. Only the
    secrets of the tables `secrets` are read; None: all.

    Relative paths start at the file's folder, so that a command finds the same stores wherever it
    is called.

    Raises:
        ConfigError: there is no such file, the file isn't TOML, or its content or an address is
            invalid.
    """
    source = find_source(path, here)
    found = SecretSource(environ=environ, folder=source.folder, used=secrets)
    return _parsed(source, found, binds, queues)


def parse(
    text: str,
    *,
    source: str,
    folder: Path,
    environ: Mapping[str, str],
    binds: Sequence[str] = (),
    queues: Sequence[str] = (),
) -> Loaded:
    """
    Read the text of a configuration.

    Raises:
        ConfigError: the text isn't TOML, or its content is invalid; each line begins with `source`.
    """
    secrets = SecretSource(environ=environ, folder=folder)
    return _parsed(Source(text, source, folder), secrets, binds, queues)


def _parsed(
    read: Source, secrets: SecretSource, binds: Sequence[str], queues: Sequence[str]
) -> Loaded:
    environ, folder, source = secrets.environ, read.folder, read.name
    table = tables_of(read)
    table = with_queues(with_binds(table, binds, environ), queues)
    for override in parts("overrides"):
        table = override(table, environ)
    try:
        config = structure(table, Config, secrets)
    except ConfigError as error:
        raise ConfigError(f"{source}: {problem}" for problem in error.problems) from error
    config, problems = _with_plans(_completed(config, source, folder))
    for complete in parts("completions"):
        config = complete(config, folder)
    problems += problems_of(config)
    if problems:
        raise ConfigError(f"{source}: {problem}" for problem in problems)
    warnings = (*secrets.warnings, *warnings_of(config))
    return Loaded(
        config=config,
        source=source,
        folder=folder,
        text=read.text,
        binds=tuple(binds),
        warnings=warnings,
    )


def _completed(config: Config, source: str, folder: Path) -> Config:
    namespaces = {
        name: attrs.evolve(namespace, name=name, source=source, url=absolute(namespace.url, folder))
        for name, namespace in config.namespaces.items()
    }
    endpoints = tuple(
        attrs.evolve(endpoint, bind=absolute(endpoint.bind, folder, own="unix"))
        if unix.path_of(endpoint.bind) is not None
        else endpoint
        for endpoint in config.endpoints
    )
    config = _rooted(attrs.evolve(config, namespaces=namespaces, endpoints=endpoints), folder)
    if config.pairing is None:
        return config
    return attrs.evolve(config, pairing=_completed_pairing(config, config.pairing))


def _with_plans(config: Config) -> tuple[Config, list[str]]:
    namespaces, problems = {}, list[str]()
    for name, namespace in config.namespaces.items():
        plan, found = read_plan(namespace)
        namespaces[name] = attrs.evolve(namespace, plan=plan)
        problems += (f"namespaces.{name}.{problem}" for problem in found)
    return attrs.evolve(config, namespaces=namespaces), problems


def _completed_pairing(config: Config, pairing: Pairing) -> Pairing:
    label = pairing.options.label
    primary: Namespace | None = config.namespaces.get(pairing.primary)
    if not label and primary is not None:
        label = label_of(location_of(primary)) or _local_label(config, pairing)
    oversized = pairing.options.oversized or _oversized(config, primary)
    options = attrs.evolve(
        pairing.options, label=label, entities=config.entities, oversized=oversized
    )
    return attrs.evolve(pairing, options=options)


def _oversized(config: Config, primary: Namespace | None) -> Oversized:
    """
    Clients of Storage know the service's limit, and those of RabbitMQ the broker's, which takes
    their messages itself. There is no way to tell either a smaller one: the primary decides.
    """
    protocols = {endpoint.protocol for endpoint in config.endpoints}
    is_storage = primary is not None and scheme_of(primary) == STORAGE_QUEUE
    of_storage = STORAGE_QUEUE in protocols and is_storage
    of_rabbitmq = RABBITMQ in protocols and config.is_home_rabbitmq
    return Oversized.PRIMARY_ONLY if of_storage or of_rabbitmq else Oversized.REFUSE


def _local_label(config: Config, pairing: Pairing) -> str:
    """The primary's name if both namespaces are stores of this process, else empty."""
    stores = [config.namespaces.get(name) for name in (pairing.primary, pairing.secondary)]
    is_local = all(store is not None and not authority_of(store) for store in stores)
    return pairing.primary if is_local else ""


def _rooted(value: Any, folder: Path) -> Any:
    """The value with every relative path in it, at any depth, placed below `folder`."""
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_rooted(item, folder) for item in value)
    if isinstance(value, dict):
        return {key: _rooted(item, folder) for key, item in value.items()}
    if attrs.has(type(value)):
        changes = {
            field.name: _rooted(getattr(value, field.name), folder)
            for field in attrs.fields(type(value))
            if field.init
        }
        return attrs.evolve(value, **changes)
    return value
