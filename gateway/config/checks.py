"""Errors and warnings that only the whole configuration shows, not a single key."""

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from gateway.config.checks_of_pairs import problems_of_pair, warnings_of_pair
from gateway.config.endpoints import (
    ADMIN,
    AMQP,
    LISTEN,
    ONE_PORT,
    RABBITMQ,
    SERVE,
    STORAGE_QUEUE,
    USUAL_MODE,
    Endpoint,
    host_of_bind,
    is_loopback,
    requires_tls,
)
from gateway.config.options import Config, Namespace
from gateway.config.places import (
    addresses_of,
    hosts_of,
    is_plain,
    location_of,
    problems_of_credential,
    problems_of_hosts,
    user_of,
)
from gateway.config.problems import twice
from gateway.domain.entity import EntityPath
from gateway.domain.errors import InvalidRequest
from gateway.extensions.listing import parts
from gateway.listening.scaling.concurrency import parse_weights
from gateway.net import unix
from gateway.net.listeners import CannotListen, split_address

_KEY_IN_URL: Final = re.compile(
    r"^(?:servicebus|storage-queue):.*"
    r"(?:\b(?:SharedAccessKey|AccountKey|SharedAccessSignature)|[?&]sig) *=",
    re.IGNORECASE,
)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_ORIGIN: Final = re.compile(r"https?://[^/?#\s]+", re.IGNORECASE)


def problems_of(config: Config) -> list[str]:
    """Return a line for each error; each begins with the path of a key."""
    found = [*_namespaces(config), *_endpoints(config), *_queues(config)]
    found += [*_names_twice(config), *_agent(config)]
    found += [*_tokens(config), *_keyless_accounts(config)]
    if config.pairing is not None:
        found += problems_of_pair(config, config.pairing)
    elif len(_used_alone(config)) > 1:
        found.append("pairing: is missing; without it only one namespace may be configured")
    elif config.entities:
        found.append("entities: needs [pairing], because these options belong to a pair")
    return [*found, *(problem for check in parts("checks") for problem in check(config))]


def warnings_of(config: Config) -> list[str]:
    """Return a line for each setting that is allowed and seldom wise."""
    found = [*_short_grace(config), *_shared_port(config), *_plain_text(config)]
    found += [*_idle_issuers(config), *_idle_certificates(config), *_anonymous(config)]
    found += [*_well_known_keys(config), *_development(config)]
    if config.pairing is not None:
        found += warnings_of_pair(config, config.pairing)
    return [*found, *(warning for warn in parts("warnings") for warning in warn(config))]


def _plain_text(config: Config) -> Iterator[str]:
    for index, endpoint in enumerate(config.endpoints):
        beyond = not is_loopback(host_of_bind(endpoint.bind))
        if beyond and endpoint.tls is not None and not requires_tls(endpoint):
            yield (
                f"endpoints[{index}].tls.required: false, so {endpoint.bind} accepts plain text"
                " from other machines too: keys, tokens and messages can be read on the way"
            )


def _well_known_keys(config: Config) -> Iterator[str]:
    """
    Endpoints on this machine that accept the emulators' key, although others need a secret: all of
    them serve the same queues.
    """
    for index, endpoint in enumerate(config.endpoints):
        of_storage = endpoint.protocol == STORAGE_QUEUE
        own, other = (
            (config.accounts, config.access) if of_storage else (config.access, config.accounts)
        )
        if endpoint.protocol == ADMIN or own or not other or _is_wire(config, endpoint):
            continue
        names = ("accounts", "access") if of_storage else ("access", "accounts")
        yield (
            f"endpoints[{index}]: without [[{names[0]}]] it accepts the emulators' well-known key,"
            f" with all rights, whatever [[{names[1]}]] restricts: add [[{names[0]}]]"
        )


def _development(config: Config) -> Iterator[str]:
    if not config.development:
        return
    beyond = [each for each in config.endpoints if not is_loopback(host_of_bind(each.bind))]
    public = [
        each.bind for each in beyond if not (_is_wire(config, each) or _credentials(config, each))
    ]
    if public:
        yield (
            f"development: {', '.join(public)} accepts the emulators' well-known key, with all"
            " rights, from every machine that reaches it"
        )


def _anonymous(config: Config) -> Iterator[str]:
    speaking = [each for each in config.endpoints if each.protocol in {AMQP, ONE_PORT}]
    beyond = [each.bind for each in speaking if not is_loopback(host_of_bind(each.bind))]
    for index, policy in enumerate(config.access):
        if policy.anonymous and not speaking:
            yield f"access[{index}].anonymous: no endpoint speaks AMQP, so no client has the rights"
        elif policy.anonymous and beyond:
            rights = ", ".join(sorted(right.value for right in policy.rights))
            yield (
                f"access[{index}].anonymous: {', '.join(beyond)} is reachable from other machines:"
                f" every client there has these rights without credentials: {rights}"
            )


def _short_grace(config: Config) -> Iterator[str]:
    agent, listener = config.agent, config.listener.options
    if agent.listeners and agent.grace <= listener.grace:
        yield (
            f"agent.grace: {agent.grace:g} s isn't more than the {listener.grace:g} s of"
            " listener.grace: handlers that could still finish are killed"
        )


def _shared_port(config: Config) -> Iterator[str]:
    fixed = {"listener.metrics": config.listener.metrics}
    endpoints = config.endpoints_of(LISTEN).items()
    fixed |= {f"endpoints[{number}].bind": endpoint.bind for number, endpoint in endpoints}
    most = sum(
        listener.autoscaling.max_processes
        for listener in config.agent.listeners
        if not any(argument.startswith("--metrics") for argument in listener.arguments)
    )
    for key, bind in fixed.items():
        if bind is not None and most > 1 and not _is_any(bind):
            yield (
                f"{key}: {bind} can be bound by one process only, and the agent may start {most}:"
                " the others fail; with port 0 each process gets its own port, which it logs"
            )


def _is_any(bind: str) -> bool:
    """True if each process that opens it gets another port."""
    return bind.endswith(":0") and unix.path_of(bind) is None


def _agent(config: Config) -> Iterator[str]:
    agent = config.agent
    here = any(each.protocol == ADMIN for each in config.endpoints_of(SERVE).values())
    if agent.listeners and agent.gateway is None and not here:
        yield "agent.gateway: is missing, and this configuration has no `admin` endpoint"
    for index, listener in enumerate(agent.listeners):
        path, autoscaling = f"agent.listeners[{index}]", listener.autoscaling
        try:
            parse_weights(listener.queues)
            for name in listener.queues.split():
                EntityPath.parse(name.partition(":")[0])
        except InvalidRequest as error:
            yield f"{path}.queues: {error}"
        if [listener.to, listener.exec, listener.python].count(None) != 2:
            yield f"{path}: one of `to`, `exec` and `python` expected"
        if autoscaling.max_processes < autoscaling.min_processes:
            yield (
                f"{path}.max_processes: at least min_processes, {autoscaling.min_processes},"
                f" expected, found {autoscaling.max_processes}"
            )


def _namespaces(config: Config) -> Iterator[str]:
    spaces = config.namespaces.items()
    stores = {f"namespaces.{name}": set(addresses_of(space)) for name, space in spaces}
    if config.pairing is not None and config.pairing.spool is not None:
        spool = Namespace(name="(spool)", url=f"embedded:{config.pairing.spool}")
        stores["pairing.spool"] = set(addresses_of(spool))
    for (first, one), (second, other) in combinations(stores.items(), 2):
        if one & other:
            yield f"{second}: is the same store as {first}; each needs its own"
    for name, namespace in config.namespaces.items():
        if ":" in user_of(namespace.url) or _KEY_IN_URL.search(namespace.url):
            secret = _secret_of(namespace.options)
            yield (
                f"namespaces.{name}.url: must not contain a secret;"
                f" write {secret} = {{ env = ... }}"
            )
        yield from problems_of_hosts(name, namespace)
        for problem in _credential(namespace):
            yield f"namespaces.{name}.credential{problem}"


def _credential(namespace: Namespace) -> Iterator[str]:
    """Errors of `credential`; each begins with the rest of its key's path."""
    options = getattr(namespace.options, "credential", None)
    if options is None:
        return
    hosts = hosts_of(location_of(namespace))
    yield from problems_of_credential(options, is_plain=is_plain(namespace), hosts=hosts)


def _secret_of(options: object) -> str:
    return "password" if hasattr(options, "password") else "key"


def _queues(config: Config) -> Iterator[str]:
    for name, namespace in config.namespaces.items():
        for index, queue in enumerate(namespace.queues):
            try:
                EntityPath.parse(queue)
            except InvalidRequest as error:
                yield f"namespaces.{name}.queues[{index}]: {error}"
        for queue in twice([queue.lower() for queue in namespace.queues]):
            yield f"namespaces.{name}.queues: {queue!r} is given twice; case makes no difference"


def _endpoints(config: Config) -> Iterator[str]:
    for index, endpoint in enumerate(config.endpoints):
        if (why := _wrong_bind(endpoint)) is not None:
            yield f"endpoints[{index}].bind: {why}"
            continue
        yield from (f"endpoints[{index}].{problem}" for problem in _of_endpoint(endpoint))
        if endpoint.protocol == RABBITMQ and config.namespaces:
            if config.is_home_rabbitmq:
                continue  # the primary judges the credentials
            if config.kept_queues is None:
                yield (
                    f"endpoints[{index}].protocol: rabbitmq needs [pairing], beside whose state the"
                    " exchanges and bindings are kept, or a namespace embedded:PATH; but there is"
                    f" none, and {config.home_name} is {config.home.url.partition(':')[0]}:"
                )
        if not _credentials(config, endpoint) and not config.accepts_well_known_key(endpoint):
            table = "accounts" if endpoint.protocol == STORAGE_QUEUE else "access"
            yield (
                f"endpoints[{index}].bind: {endpoint.bind} is reachable from other machines:"
                f" add [[{table}]], or bind to 127.0.0.1;"
                " for tests in a container: development = true"
            )
    # Processes of different kinds may run on different machines.
    fixed = [(each.process, each.bind) for each in config.endpoints if not _is_any(each.bind)]
    for _, bind in sorted({each for each in fixed if fixed.count(each) > 1}):
        yield f"endpoints: {bind} is given twice"


def _is_wire(config: Config, endpoint: Endpoint) -> bool:
    """True if the primary judges the credentials of the endpoint's clients."""
    return endpoint.protocol == RABBITMQ and config.is_home_rabbitmq


def _credentials(config: Config, endpoint: Endpoint) -> Sequence[object]:
    """The configured credentials of the endpoint's clients."""
    return config.accounts if endpoint.protocol == STORAGE_QUEUE else config.access


def _wrong_bind(endpoint: Endpoint) -> str | None:
    path = unix.path_of(endpoint.bind)
    if path is None:
        try:
            split_address(endpoint.bind)
        except CannotListen as error:
            return str(error)
        return None
    if endpoint.protocol != ADMIN:
        return f'HOST:PORT expected; a Unix socket is for the protocol "{ADMIN}"'
    return unix.why_no_path(path)


def _of_endpoint(endpoint: Endpoint) -> Iterator[str]:
    is_file = unix.path_of(endpoint.bind) is not None
    for_ports = ("tls", "allowed_origins", "allowed_hosts")
    if is_file and (key := next((name for name in for_ports if getattr(endpoint, name)), None)):
        yield f"{key}: is for HOST:PORT; the permissions of a Unix socket's file say who may use it"
    if not is_file and endpoint.mode != USUAL_MODE:
        yield 'mode: is for a Unix socket (bind = "unix:PATH")'
    if endpoint.process != SERVE and endpoint.protocol != ADMIN:
        yield (
            f'process: "{SERVE}" expected, because only an endpoint of the protocol "{ADMIN}" can'
            " belong to another process"
        )
    if endpoint.tls and endpoint.tls.client_ca and endpoint.tls.required is False:
        yield "tls.required: must be true with client_ca"
    if endpoint.tls and endpoint.tls.crl and not endpoint.tls.client_ca:
        yield "tls.crl: needs client_ca, whose certificates the lists revoke"
    yield from _names(endpoint)


def _names(endpoint: Endpoint) -> Iterator[str]:
    for host in endpoint.allowed_hosts:
        if not _HOST.fullmatch(host):
            yield f"allowed_hosts: a name without a port expected, found {host!r:.60}"
    for origin in endpoint.allowed_origins:
        if not _ORIGIN.fullmatch(origin):
            yield f"allowed_origins: http(s)://HOST[:PORT] expected, found {origin!r:.60}"


def _tokens(config: Config) -> Iterator[str]:
    known = [each.issuer.name for each in config.issuers]
    for index, policy in enumerate(config.access):
        if policy.token is not None and policy.token.issuer not in known:
            names = ", ".join(sorted(known)) or "none"
            yield (
                f"access[{index}].token.issuer: there is no issuer {policy.token.issuer!r} in"
                f" [[issuers]]; configured are {names}"
            )


def _keyless_accounts(config: Config) -> Iterator[str]:
    has_others = any(policy.token or policy.certificates for policy in config.access)
    for index, account in enumerate(config.accounts):
        if not account.keys and not has_others:
            yield (
                f"accounts[{index}].key: is missing; without it clients need tokens or"
                " certificates, and no [[access]] has token = { issuer, claims } or certificates"
            )


def _idle_certificates(config: Config) -> Iterator[str]:
    demands = any(each.tls is not None and each.tls.client_ca for each in config.endpoints)
    for index, policy in enumerate(config.access):
        if policy.certificates and not demands:
            yield f"access[{index}].certificates: no endpoint has tls.client_ca, so none is shown"


def _idle_issuers(config: Config) -> Iterator[str]:
    used = {policy.token.issuer for policy in config.access if policy.token is not None}
    for index, options in enumerate(config.issuers):
        if options.issuer.name not in used:
            yield (
                f"issuers[{index}].name: no [[access]] has a token of {options.issuer.name!r}:"
                " its clients have no rights"
            )


def _names_twice(config: Config) -> Iterator[str]:
    names = [each.issuer.name for each in config.issuers]
    yield from (f"issuers: the name {n!r} is given twice" for n in twice(names))
    urls = [each.issuer.issuer for each in config.issuers]
    yield from (f"issuers: the issuer {n!r} is given twice" for n in twice(urls))
    policies = [policy.name for policy in config.access]
    yield from (f"access: the name {n!r} is given twice" for n in twice(policies))
    accounts = [account.name for account in config.accounts]
    yield from (f"accounts: the name {n!r} is given twice" for n in twice(accounts))
    if config.pairing is not None:
        keys = config.pairing.envelope_keys
        same = {key.id for index, key in enumerate(keys) if key in keys[:index]}
        yield from (f"pairing.envelope_keys: the id {n!r} is given twice" for n in sorted(same))


def _used_alone(config: Config) -> set[str]:
    """The namespaces of a gateway without a pair, besides those of extensions."""
    others = {*config.apart, *config.further_namespaces}
    return {name for name in config.namespaces if name not in others}
