"""Errors and warnings of a pair that only the whole configuration shows: a part of `checks`."""

from collections.abc import Iterator
from pathlib import Path

from gateway.config.endpoints import is_loopback
from gateway.config.options import SHORTEST_SECRET, Config, Pairing
from gateway.config.places import hosts_of, location_of
from gateway.config.problems import no_namespace
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.pairing.options import Oversized
from gateway.pairing.sending import PRIMARY_SHARE


def problems_of_pair(config: Config, pairing: Pairing) -> Iterator[str]:
    """Return a line for each error; each begins with the path of a key."""
    for role, name in (("primary", pairing.primary), ("secondary", pairing.secondary)):
        if name not in config.namespaces:
            yield f"pairing.{role}: {no_namespace(name, config.namespaces)}"
    if pairing.primary == pairing.secondary:
        yield "pairing.secondary: is the same namespace as pairing.primary; a pair needs two"
    yield from _label(pairing)
    yield from _encryption(pairing)
    if not pairing.envelope_keys and any(_beyond_this_machine(config, pairing)):
        yield (
            "pairing.envelope_keys: is missing; if not everything runs on this machine, each"
            ' gateway of the pair needs the same key: [{ id = "1", key = { env = "NAME" } }]'
        )


def warnings_of_pair(config: Config, pairing: Pairing) -> Iterator[str]:
    """Return a line for each setting that is allowed and seldom wise."""
    yield from _shared_fate(config, pairing)
    yield from _slow_connects(config, pairing)
    yield from _lonely_key(pairing)
    if pairing.options.oversized is Oversized.PRIMARY_ONLY:
        yield (
            f"pairing.oversized: primary-only: a message that is too large for {pairing.secondary}"
            " is refused while the primary is down"
        )


def _label(pairing: Pairing) -> Iterator[str]:
    label = pairing.options.label
    if not label:
        yield (
            "pairing.label: is missing, and the primary's URL has no DNS name to derive it from;"
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


def _encryption(pairing: Pairing) -> Iterator[str]:
    if not pairing.encrypt:
        return
    if pairing.accept_legacy_backlog:
        yield (
            "pairing.encrypt: must be false with accept_legacy_backlog, because a legacy client"
            " neither encrypts nor decrypts. A syphon of its own with accept_legacy_backlog and"
            " without encrypt moves both: what legacy clients have diverted, and what is encrypted"
        )
    if pairing.envelope_keys and len(pairing.envelope_keys[0].key) < SHORTEST_SECRET:
        yield (
            f"pairing.envelope_keys[0].key: at least {SHORTEST_SECRET} bytes expected, because the"
            " first key encrypts; `openssl rand -base64 32` prints one"
        )


def _beyond_this_machine(config: Config, pairing: Pairing) -> Iterator[bool]:
    for endpoint in config.endpoints:
        yield not config.accepts_well_known_key(endpoint)
    for name in (pairing.primary, pairing.secondary):
        namespace = config.namespaces.get(name)
        hosts = hosts_of(location_of(namespace)) if namespace is not None else ()
        yield not all(map(is_loopback, hosts))


def _shared_fate(config: Config, pairing: Pairing) -> Iterator[str]:
    pair = config.namespaces[pairing.primary], config.namespaces[pairing.secondary]
    hosts, others = (set(hosts_of(location_of(namespace))) for namespace in pair)
    if not hosts and not others:
        disks = {_disk(namespace.url) for namespace in pair}
        shared = "disk" if len(disks) == 1 and None not in disks else "machine"
        yield f"pairing: both namespaces are on this {shared}; one fault can affect both"
    elif shared_hosts := sorted(hosts & others):
        names = f"host{'s' * (len(shared_hosts) > 1)} {', '.join(shared_hosts)}"
        yield f"pairing: both namespaces are on the {names}; one fault can affect both"


def _disk(url: str) -> int | None:
    if not url.startswith("embedded:"):
        return None
    path = Path(url.partition(":")[2])
    return next((folder.stat().st_dev for folder in path.parents if folder.exists()), None)


def _slow_connects(config: Config, pairing: Pairing) -> Iterator[str]:
    """
    A warning about slow connects: an attempt that times out while it still connects has an unknown
    outcome.
    """
    options = pairing.options
    attempt = min(options.attempt_timeout, PRIMARY_SHARE * options.send_timeout)
    for name in (pairing.primary, pairing.secondary):
        timeout = getattr(config.namespaces[name].options, "connect_timeout", 0.0)
        if timeout >= attempt:
            yield (
                f"namespaces.{name}.connect_timeout: {timeout:g} s isn't less than the {attempt:g}"
                " s of an attempt (attempt_timeout, and 40 % of send_timeout): a connection that"
                " hangs is an unknown outcome, and its message may arrive twice"
            )


def _lonely_key(pairing: Pairing) -> Iterator[str]:
    if pairing.encrypt and not pairing.envelope_keys:
        yield (
            f"pairing.encrypt: the key is made here, and only in {pairing.state.parent}: without it"
            " nobody can read the backlog. Back it up, or set envelope_keys"
        )
