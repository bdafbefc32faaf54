"""What no single key can tell: mistakes and doubts that only the whole configuration shows."""

import ipaddress
import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.brokers.registry import cannot
from gateway.config.options import (
    ADMIN,
    STORAGE_QUEUE,
    Claims,
    Config,
    Namespace,
    Pairing,
    TriggerTopic,
)
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.domain.scaling import parse_weights
from gateway.pairing.sending import PRIMARY_SHARE
from gateway.wire.blob import check_container, parse_blob_account
from gateway.wire.connection_string import parse_connection_string
from gateway.wire.storage_connection import parse_storage_connection

_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE | re.ASCII)
_KEY_IN_URL: Final = re.compile(
    r"^(?:servicebus|storage-queue):.*\b(?:SharedAccessKey|AccountKey|SharedAccessSignature) *=",
    re.IGNORECASE,
)
_ACCOUNT_KEY: Final = re.compile(r"(^|;) *(AccountKey|SharedAccessSignature) *=", re.IGNORECASE)
_NETWORK: Final = "://"


def label_of(url: str) -> str:
    """The first DNS label of the URL's host; empty where the host is no name of several labels."""
    host = host_of(url)
    first, dot, _ = host.partition(".")
    return first if dot and _DNS_LABEL.fullmatch(first) and not _address(host) else ""


def location_of(namespace: Namespace) -> str:
    """The URL that says where it is: of a connection string, its endpoint."""
    scheme, _, rest = namespace.url.partition(":")
    if scheme not in {"servicebus", "storage-queue"}:
        return namespace.url
    text = getattr(namespace.options, "connection_string", "") or rest
    try:
        if scheme == "storage-queue":
            found = parse_storage_connection(text)
            return f"{found.origin}{found.path}"
        return f"sb://{parse_connection_string(text).authority}"
    except InvalidRequest:  # opening it says what is wrong
        return namespace.url


def host_of(url: str) -> str:
    """The host that a namespace is on; empty where it is in this process."""
    if _NETWORK not in url:
        return ""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def host_of_bind(bind: str) -> str:
    return bind.rpartition(":")[0].strip("[]")


def problems_of(config: Config) -> list[str]:
    """One line for each mistake; each begins with the path of a key."""
    found = [*_namespaces(config), *_endpoints(config), *_queues(config)]
    found += [*_names_twice(config), *_agent(config)]
    if config.claims is not None:
        found += _claims(config.claims)
    if config.triggers is not None:
        found += _triggers(config, config.triggers)
    if config.pairing is not None:
        found += _pairing(config, config.pairing)
    elif len(config.namespaces.keys() - {_keeper_of_triggers(config)}) > 1:
        found.append("pairing: is missing, and without it there can be only one namespace")
    elif config.entities:
        found.append("entities: they are of a pair, and there is no [pairing]")
    return found


def warnings_of(config: Config) -> list[str]:
    """One line for each thing that is allowed and seldom wise."""
    found = [*_short_grace(config), *_shared_port(config)]
    if config.pairing is not None:
        found += _shared_fate(config, config.pairing)
        found += _slow_connects(config, config.pairing)
    return found


def _shared_fate(config: Config, pairing: Pairing) -> Iterator[str]:
    pair = config.namespaces[pairing.primary], config.namespaces[pairing.secondary]
    hosts = {host_of(location_of(namespace)) for namespace in pair}
    if hosts == {""}:
        disks = {_disk(namespace.url) for namespace in pair}
        shared = "disk" if len(disks) == 1 and None not in disks else "machine"
        yield f"pairing: both namespaces are on this {shared}; one fault can take both"
    elif len(hosts) == 1:
        yield f"pairing: both namespaces are on the host {hosts.pop()}; one fault can take both"


def _slow_connects(config: Config, pairing: Pairing) -> Iterator[str]:
    """An attempt that ends while it still connects has an outcome that nobody knows."""
    options = pairing.options
    attempt = min(options.attempt_timeout, PRIMARY_SHARE * options.send_timeout)
    for name in (pairing.primary, pairing.secondary):
        timeout = getattr(config.namespaces[name].options, "connect_timeout", 0.0)
        if timeout >= attempt:
            yield (
                f"namespaces.{name}.connect_timeout: {timeout:g} s isn't less than the {attempt:g}"
                " s of an attempt (attempt_timeout, and 40 % of send_timeout): a connection that"
                " hangs counts as an unknown outcome, and its message can arrive twice"
            )


def _short_grace(config: Config) -> Iterator[str]:
    agent, listener = config.agent, config.listener.options
    if agent.listeners and agent.grace <= listener.grace:
        yield (
            f"agent.grace: {agent.grace:g} s isn't more than the {listener.grace:g} s of"
            " listener.grace: handlers that may yet finish are killed"
        )


def _shared_port(config: Config) -> Iterator[str]:
    metrics = config.listener.metrics
    most = sum(
        listener.staffing.max_processes
        for listener in config.agent.listeners
        if not any(argument.startswith("--metrics") for argument in listener.arguments)
    )
    if metrics is not None and most > 1 and not metrics.endswith(":0"):
        yield (
            f"listener.metrics: {metrics} can be bound by one process, and the agent may start"
            f" {most}: the others crash; with port 0 each has one of its own, which is in the log"
        )


def _agent(config: Config) -> Iterator[str]:
    agent = config.agent
    here = any(endpoint.protocol == ADMIN for endpoint in config.endpoints)
    if agent.listeners and agent.gateway is None and not here:
        yield "agent.gateway: is missing, and there is no endpoint `admin` here to ask for figures"
    for index, listener in enumerate(agent.listeners):
        path, staffing = f"agent.listeners[{index}]", listener.staffing
        try:
            parse_weights(listener.queues)
            for name in listener.queues.split():
                EntityPath.parse(name.partition(":")[0])
        except InvalidRequest as error:
            yield f"{path}.queues: {error}"
        if [listener.to, listener.exec, listener.python].count(None) != 2:
            yield f"{path}: one of `to`, `exec` and `python` expected"
        if staffing.max_processes < staffing.min_processes:
            yield (
                f"{path}.max_processes: at least min_processes, {staffing.min_processes}, expected,"
                f" found {staffing.max_processes}"
            )


def _namespaces(config: Config) -> Iterator[str]:
    spaces = config.namespaces.items()
    stores = {f"namespaces.{name}": location_of(space) for name, space in spaces}
    if config.pairing is not None and config.pairing.spool is not None:
        stores["pairing.spool"] = f"embedded:{config.pairing.spool}"
    for (first, one), (second, other) in combinations(stores.items(), 2):
        if _same_store(one, other):
            yield f"{second}: is the same store as {first}; each needs its own"
    for name, namespace in config.namespaces.items():
        if ":" in _user_of(namespace.url) or _KEY_IN_URL.search(namespace.url):
            secret = _secret_of(namespace.options)
            yield f"namespaces.{name}.url: no secret in a URL; write {secret} = {{ env = ... }}"


def _secret_of(options: object) -> str:
    return "password" if hasattr(options, "password") else "key"


def _user_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[0] if _NETWORK in url else ""


def _same_store(one: str, other: str) -> bool:
    if one.partition(":")[0] != other.partition(":")[0] or one.startswith("memory:"):
        return False
    if _NETWORK not in one:
        return os.path.realpath(one.partition(":")[2]) == os.path.realpath(other.partition(":")[2])
    return _place_of(one) == _place_of(other)


def _place_of(url: str) -> tuple[str, str]:
    """The host and the port, and what of that server it is."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2], parts.path.strip("/")


def _queues(config: Config) -> Iterator[str]:
    for name, namespace in config.namespaces.items():
        for index, queue in enumerate(namespace.queues):
            try:
                EntityPath.parse(queue)
            except InvalidRequest as error:
                yield f"namespaces.{name}.queues[{index}]: {error}"


def _endpoints(config: Config) -> Iterator[str]:
    for index, endpoint in enumerate(config.endpoints):
        of_storage = endpoint.protocol == STORAGE_QUEUE
        known = config.accounts if of_storage else config.access
        if not is_loopback(host_of_bind(endpoint.bind)) and not known:
            yield (
                f"endpoints[{index}].bind: {endpoint.bind} can be reached from other machines:"
                f" add [[{'accounts' if of_storage else 'access'}]], or bind to 127.0.0.1"
            )
    fixed = [endpoint.bind for endpoint in config.endpoints if not endpoint.bind.endswith(":0")]
    for bind in sorted({bind for bind in fixed if fixed.count(bind) > 1}):
        yield f"endpoints: {bind} is there twice"


def _names_twice(config: Config) -> Iterator[str]:
    policies = [policy.name for policy in config.access]
    yield from (f"access: the name {n!r} is there twice" for n in _twice(policies))
    accounts = [account.name for account in config.accounts]
    yield from (f"accounts: the name {n!r} is there twice" for n in _twice(accounts))
    if config.pairing is not None:
        keys = config.pairing.envelope_keys
        same = {key.id for index, key in enumerate(keys) if key in keys[:index]}
        yield from (f"pairing.envelope_keys: the id {n!r} is there twice" for n in sorted(same))


def _claims(claims: Claims) -> Iterator[str]:
    scheme, _, rest = claims.store.partition(":")
    if scheme == "folder":
        if not rest:
            yield "claims.store: a path expected after 'folder:'"
        return
    if scheme != "azure-blob":
        yield "claims.store: folder:PATH or azure-blob:CONNECTION_STRING expected"
        return
    if _ACCOUNT_KEY.search(rest):
        yield "claims.store: no secret in it; write key = { env = ... }"
        return
    try:
        check_container(claims.container)
    except InvalidRequest as error:
        yield f"claims.{error}"
    try:
        parse_blob_account(claims.connection_string or rest, claims.key)
    except InvalidRequest as error:
        yield f"claims.store: {error}"


def _keeper_of_triggers(config: Config) -> str | None:
    return None if config.triggers is None else config.triggers.namespace


def _triggers(config: Config, triggers: TriggerTopic) -> Iterator[str]:
    try:
        EntityPath.parse(triggers.topic)
    except InvalidRequest as error:
        yield f"triggers.topic: {error}"
    name = triggers.namespace
    if name is not None and name not in config.namespaces:
        known = ", ".join(sorted(config.namespaces))
        yield f"triggers.namespace: there is no namespace {name!r}; there are {known}"
        return
    if config.pairing is not None and config.pairing.primary not in config.namespaces:
        return  # which is said already
    keeper = config.home if name is None else config.namespaces[name]
    if "topics" in cannot(keeper.url):
        kind = keeper.url.partition(":")[0]
        yield (
            f"triggers.namespace: {keeper.name!r} is of the kind {kind}, which has no topics;"
            " name one of the kinds embedded, servicebus, servicebus+http(s)"
        )


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _pairing(config: Config, pairing: Pairing) -> Iterator[str]:
    for role, name in (("primary", pairing.primary), ("secondary", pairing.secondary)):
        if name not in config.namespaces:
            known = ", ".join(sorted(config.namespaces))
            yield f"pairing.{role}: there is no namespace {name!r}; there are {known}"
    if pairing.primary == pairing.secondary:
        yield "pairing.secondary: is the primary too; a pair needs two namespaces"
    yield from _label(pairing)
    if not pairing.envelope_keys and any(_beyond_this_machine(config, pairing)):
        yield (
            "pairing.envelope_keys: is missing; where others than this machine take part, each"
            ' gateway of the pair needs the same key: [{ id = "1", key = { env = "NAME" } }]'
        )


def _label(pairing: Pairing) -> Iterator[str]:
    label = pairing.options.label
    if not label:
        yield (
            "pairing.label: is missing, and the primary's URL has no DNS name to take it from;"
            " backlog queues are named {label}/x-servicebus-transfer/{i}"
        )
    elif "/" in label or not _is_entity(label):
        yield f"pairing.label: letters, digits, '.', '-', '_' expected, found {label!r}"


def _is_entity(text: str) -> bool:
    try:
        EntityPath.parse(text)
    except InvalidRequest:
        return False
    return True


def _beyond_this_machine(config: Config, pairing: Pairing) -> Iterator[bool]:
    for endpoint in config.endpoints:
        yield not is_loopback(host_of_bind(endpoint.bind))
    for name in (pairing.primary, pairing.secondary):
        namespace = config.namespaces.get(name)
        host = host_of(location_of(namespace)) if namespace is not None else ""
        yield bool(host) and not is_loopback(host)


def _disk(url: str) -> int | None:
    if not url.startswith("embedded:"):
        return None
    path = Path(url.partition(":")[2])
    return next((folder.stat().st_dev for folder in path.parents if folder.exists()), None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
