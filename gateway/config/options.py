"""
The sections of the file as values: the place of each part's options, and the options that belong to
no part.
"""

import base64
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
from attrs import validators

from gateway.config.endpoints import Endpoint, host_of_bind, is_loopback
from gateway.config.secrets import Secret
from gateway.config.values import expected
from gateway.domain.access import AccessPolicy, Issuer, Right, TokenRule
from gateway.domain.backoff import Backoff
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.option_fields import FLAT, NUMBER
from gateway.domain.plan import Plan
from gateway.domain.storage_queue import StorageAccount, check_account_name
from gateway.extensions.listing import parts
from gateway.extensions.tables import HasTables, no_tables
from gateway.frontends.issuers import IssuerOptions
from gateway.frontends.options import AdminOptions, AmqpOptions, RestOptions, StorageQueueOptions
from gateway.frontends.shared_receivers import LeaseOptions
from gateway.listening.options import ListenerOptions as HandlingOptions
from gateway.listening.scaling.autoscaling import AutoscalingOptions
from gateway.net.clients import ClientOptions
from gateway.net.http.server import HttpServerOptions
from gateway.net.listeners import PortOptions
from gateway.net.openid import KeySource, why_no_url
from gateway.net.sniffing import SniffingOptions
from gateway.pairing.options import EntityRule, PairOptions, SyphonOptions
from gateway.telemetry.log import LEVELS
from gateway.wire.openid.jwt import ALGORITHMS

FORMATS: Final = ("auto", "console", "json")
# A name of a client certificate: its subject, a common name, or an alternative name.
CERTIFICATE_NAME: Final = re.compile(r"[A-Za-z0-9.]+=.+|(?:DNS|URI|EMAIL|IP):.+")
SHORTEST_KEY: Final = 16  # bytes
SHORTEST_SECRET: Final = 32  # bytes of the text of a key that encrypts


@attrs.frozen(kw_only=True)
class Namespace:
    """`[namespaces.NAME]`: `options` is of the class for the URL's kind."""

    name: str = ""  # set from its table's name
    url: str
    queues: tuple[str, ...] = ()  # created by `serve` (in an embedded store) and `provision`
    entities: Path | None = None  # a Config.json of the emulator; created in the same way
    plan: Plan = attrs.field(factory=Plan)  # set from both
    source: str = ""  # set: the configuration's file
    options: Any = attrs.field(default=None, metadata=FLAT)


@attrs.frozen(kw_only=True)
class Pairing:
    """`[pairing]`."""

    primary: str
    secondary: str
    options: PairOptions = attrs.field(metadata=FLAT)
    enable_syphon: bool = False
    state: Path = Path("var/state.json")
    spool: Path | None = None
    origin: str | None = None  # None: this machine's name
    envelope_keys: tuple[EnvelopeKey, ...] = ()
    encrypt: bool = False  # diverted messages; a syphon decrypts in any case
    accept_legacy_backlog: bool = False
    syphon: SyphonOptions = attrs.field(factory=SyphonOptions)


@attrs.frozen(kw_only=True)
class Limits:
    """`[limits]`, for each endpoint."""

    grace: float = attrs.field(default=10.0, validator=validators.ge(0.0))  # of a drain, in seconds
    listener: PortOptions = attrs.field(factory=PortOptions, metadata=FLAT)
    http: HttpServerOptions = attrs.field(factory=HttpServerOptions, metadata=FLAT)
    sniffing: SniffingOptions = attrs.field(factory=SniffingOptions, metadata=FLAT)
    clients: ClientOptions = attrs.field(factory=ClientOptions)
    rest: RestOptions = attrs.field(factory=RestOptions)
    amqp: AmqpOptions = attrs.field(factory=AmqpOptions)
    storage: StorageQueueOptions = attrs.field(factory=StorageQueueOptions)
    leases: LeaseOptions = attrs.field(factory=LeaseOptions)
    admin: AdminOptions = attrs.field(factory=AdminOptions)


@attrs.frozen(kw_only=True)
class Audit:
    """`[audit]`: without this section calls of operators are events only."""

    file: Path


@attrs.frozen(kw_only=True)
class Listen:
    """`[listener]`, for `pairgate listen`."""

    # The timeout of one call of an endpoint or a command.
    handler_timeout: float = attrs.field(default=60.0, validator=validators.gt(0.0))
    # URLs of the admin endpoints of all gateways before the namespace; empty: `[triggers]`, else
    # the gateway found here.
    triggers: tuple[str, ...] = ()
    metrics: str | None = None  # HOST:PORT of an endpoint with its figures; None: no endpoint
    options: HandlingOptions = attrs.field(factory=HandlingOptions, metadata=FLAT)


@attrs.frozen(kw_only=True)
class AgentListener:
    """
    An entry of `[[agent.listeners]]`: the arguments of `pairgate listen`, and the number of
    processes.
    """

    queues: str  # for example "urgent:8 bulk:2"
    # Exactly one of these is set.
    to: str | None = None
    exec: str | None = None
    python: str | None = None
    arguments: tuple[str, ...] = ()  # further arguments of `pairgate listen`
    # Concurrent handlers of one process; None: as in [listener].
    parallel: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(1))
    )
    rule: str | None = None  # a function that replaces the three rules
    autoscaling: AutoscalingOptions = attrs.field(factory=AutoscalingOptions, metadata=FLAT)


@attrs.frozen(kw_only=True)
class Agent:
    """`[agent]`, for `pairgate agent`. Times are in seconds."""

    gateway: str | None = None  # URL of its admin endpoint; None: the gateway found here
    interval: float = attrs.field(default=5.0, validator=validators.gt(0.0))  # between two looks
    # The same while no messages wait, if the gateway announces new ones.
    idle_interval: float = attrs.field(default=60.0, validator=validators.gt(0.0))
    # Load of all processors, above which no processes are added.
    max_load: float = attrs.field(
        default=0.9, validator=[validators.gt(0.0), validators.le(1.0)], metadata=NUMBER
    )
    grace: float = attrs.field(default=30.0, validator=validators.ge(0.0))  # until SIGKILL
    restart: Backoff = Backoff(first=1.0, cap=60.0)  # of processes that end by themselves
    listeners: tuple[AgentListener, ...] = ()


@attrs.frozen(kw_only=True)
class Logging:
    """`[logging]`."""

    level: str = attrs.field(default="info", validator=validators.in_(LEVELS))
    format: str = attrs.field(default="auto", validator=validators.in_(FORMATS))
    # Seconds after an event in which the same event is counted instead of logged.
    repeat_interval: float = attrs.field(default=10.0, validator=validators.ge(0.0))


@attrs.frozen(kw_only=True)
class EnvelopeKeyEntry:
    """An entry of `pairing.envelope_keys`."""

    id: str = attrs.field(validator=validators.min_len(1))
    key: Secret = attrs.field()

    @key.validator
    def _long_enough(self, _: object, key: Secret) -> None:
        if len(key.text.encode()) < SHORTEST_KEY:
            raise ValueError(f"at least {SHORTEST_KEY} bytes expected")

    def value(self) -> EnvelopeKey:
        return EnvelopeKey(id=self.id, key=self.key.text.encode())


@attrs.frozen(kw_only=True)
class IssuerEntry:
    """`[[issuers]]`: an identity provider whose tokens are accepted."""

    name: str = attrs.field(validator=validators.min_len(1))
    issuer: str = attrs.field(validator=validators.min_len(1))
    audiences: tuple[str, ...] = attrs.field(validator=validators.min_len(1))
    # Exactly one place of its keys; none: the issuer's usual discovery document.
    discovery: str | None = attrs.field(default=None)
    keys_url: str | None = attrs.field(default=None)
    keys_file: Path | None = None
    ca: Path | None = None
    algorithms: tuple[str, ...] = attrs.field(
        default=ALGORITHMS,
        validator=[
            validators.min_len(1),
            validators.deep_iterable(validators.in_(ALGORITHMS)),
        ],
    )
    clock_skew: float = attrs.field(default=300.0, validator=validators.ge(0.0))
    refresh: float = attrs.field(default=3600.0, validator=validators.ge(60.0))
    subject_claim: str = attrs.field(default="sub", validator=validators.min_len(1))

    @discovery.validator
    @keys_url.validator
    def _is_safe(self, _: object, url: str | None) -> None:
        if url is not None and (why := why_no_url(url)) is not None:
            raise ValueError(why)

    def value(self) -> IssuerOptions:
        """
        The options of both parts. Raises: ValueError: the keys have several places, or an unsafe
        one.
        """
        places = (self.discovery, self.keys_url, self.keys_file)
        if sum(place is not None for place in places) > 1:
            raise ValueError("one of discovery, keys_url and keys_file expected")
        if not any(places) and (why := why_no_url(self.issuer)) is not None:
            raise ValueError(f"issuer: {why}; or write discovery, keys_url or keys_file")
        return IssuerOptions(
            issuer=Issuer(
                name=self.name,
                issuer=self.issuer,
                audiences=self.audiences,
                algorithms=self.algorithms,
                clock_skew=self.clock_skew,
                subject_claim=self.subject_claim,
            ),
            source=KeySource(
                discovery=self.discovery,
                keys_url=self.keys_url,
                keys_file=self.keys_file,
                ca=self.ca,
            ),
            refresh=self.refresh,
        )


@attrs.frozen(kw_only=True)
class AccessEntry:
    """
    `[[access]]`: two keys, so that one can be changed while clients still use the other; tokens of
    an identity provider and client certificates, instead of keys or beside them. Or the rights of
    clients without credentials.
    """

    name: str = attrs.field(validator=validators.min_len(1))
    key: Secret | None = None
    second_key: Secret | None = None
    token: TokenRule | None = None
    certificates: tuple[str, ...] = attrs.field(default=())
    anonymous: bool = False
    rights: tuple[Right, ...] = attrs.field(validator=validators.min_len(1))
    entities: tuple[str, ...] = attrs.field(default=("*",), validator=validators.min_len(1))

    @certificates.validator
    def _are_names(self, _: object, names: tuple[str, ...]) -> None:
        for name in names:
            if not CERTIFICATE_NAME.fullmatch(name):
                raise expected('a subject, "CN=...", "DNS:...", "URI:..." or the like', name)

    def value(self) -> AccessPolicy:
        """The policy. Raises: ValueError: no client could have the policy."""
        keys = [key.text for key in (self.key, self.second_key) if key is not None]
        if not (keys or self.token is not None or self.certificates or self.anonymous):
            raise ValueError(
                "key is missing, or token = { issuer, claims }, or certificates,"
                " or anonymous = true"
            )
        return AccessPolicy(
            name=self.name,
            keys=tuple(keys),
            token=self.token,
            certificates=tuple(map(_as_compared, self.certificates)),
            anonymous=self.anonymous,
            rights=frozenset(self.rights),
            entities=self.entities,
        )


def _as_compared(name: str) -> str:
    """The name for comparisons: case makes no difference in host names."""
    return f"DNS:{name[4:].lower()}" if name.startswith("DNS:") else name


@attrs.frozen(kw_only=True)
class AccountEntry:
    """
    `[[accounts]]`: as `[[access]]`, for the Queue service. Without a key, clients need a token of
    an identity provider.
    """

    name: str = attrs.field()
    key: Secret | None = attrs.field(default=None)
    second_key: Secret | None = attrs.field(default=None)

    @name.validator
    def _is_name(self, _: object, name: str) -> None:
        check_account_name(name)

    @key.validator
    @second_key.validator
    def _is_base64(self, _: object, key: Secret | None) -> None:
        if key is not None and len(_decoded(key)) < SHORTEST_KEY:
            raise ValueError(f"at least {SHORTEST_KEY} bytes in Base64 expected")

    def value(self) -> StorageAccount:
        keys = [_decoded(key) for key in (self.key, self.second_key) if key is not None]
        return StorageAccount(name=self.name, keys=tuple(keys))


def _decoded(key: Secret) -> bytes:
    """The key's bytes; empty if the text isn't Base64."""
    try:
        return base64.b64decode(key.text, validate=True)
    except ValueError:
        return b""


@attrs.frozen(kw_only=True)
class Config(HasTables):
    """The whole file. `folder` is the file's folder, at which relative paths start."""

    point: ClassVar = "tables"
    # True: an endpoint beyond this machine without access policies accepts the emulators' key.
    development: bool = False
    namespaces: Mapping[str, Namespace] = attrs.field(validator=validators.min_len(1))
    pairing: Pairing | None = None
    endpoints: tuple[Endpoint, ...] = ()
    issuers: tuple[IssuerOptions, ...] = ()
    access: tuple[AccessPolicy, ...] = ()
    accounts: tuple[StorageAccount, ...] = ()
    entities: tuple[EntityRule, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    listener: Listen = attrs.field(factory=Listen)
    agent: Agent = attrs.field(factory=Agent)
    audit: Audit | None = None
    logging: Logging = attrs.field(factory=Logging)
    extensions: Any = attrs.field(factory=partial(no_tables, "tables"), metadata=FLAT)

    def endpoints_of(self, process: str) -> dict[int, Endpoint]:
        """The endpoints that a process of the given command opens, by their numbers."""
        numbered = enumerate(self.endpoints)
        return {number: each for number, each in numbered if each.process == process}

    def accepts_well_known_key(self, endpoint: Endpoint) -> bool:
        """
        True if the endpoint accepts the emulators' well-known key or account while no credentials
        are configured.
        """
        return self.development or is_loopback(host_of_bind(endpoint.bind))

    @property
    def home_name(self) -> str:
        """
        The name of the primary, which may be unknown; without a pair that of the first namespace
        that isn't `apart`.
        """
        if self.pairing is not None:
            return self.pairing.primary
        others = (name for name in self.namespaces if name not in self.apart)
        return next(others, next(iter(self.namespaces)))

    @property
    def home(self) -> Namespace:
        """The namespace of that name."""
        return self.namespaces[self.home_name]

    @property
    def is_home_rabbitmq(self) -> bool:
        """True if an endpoint `rabbitmq` is a wire: the pair's primary is in RabbitMQ."""
        return self.pairing is not None and _scheme_of(self.namespaces, self.home_name) in {
            "rabbitmq",
            "rabbitmqs",
        }

    @property
    def kept_queues(self) -> Path | None:
        """
        The folder for what clients of an endpoint `rabbitmq` declare: that of the pair's state, or
        of the store itself. None: there is neither.
        """
        if self.pairing is not None:
            return self.pairing.state.parent
        scheme, _, path = self.home.url.partition(":")
        return Path(path).parent if scheme == "embedded" else None

    @property
    def serving_processes(self) -> int:
        """The number of processes that serve clients; 1: the gateway is one process."""
        return max((count(self) for count in parts("serving")), default=1)

    @property
    def further_namespaces(self) -> tuple[str, ...]:
        """The names of the namespaces that extensions open as the primary is."""
        names = (name for further in parts("namespaces") for name in further(self))
        return tuple(dict.fromkeys(name for name in names if name != self.home_name))

    @property
    def entity_names(self) -> tuple[str, ...]:
        """The names of queues and topics in the file, sorted; patterns aren't names."""
        names = {rule.match for rule in self.entities if "*" not in rule.match}
        for namespace in self.namespaces.values():
            names.update(queue.path.name for queue in namespace.plan.queues)
            names.update(topic.path.name for topic in namespace.plan.topics)
        return tuple(sorted(names))

    @property
    def apart(self) -> frozenset[str]:
        """The names of namespaces that only an extension uses."""
        return frozenset(name for names in parts("apart") for name in names(self))

    @property
    def knows_peers(self) -> bool:
        """True if gateways with this configuration know each other."""
        return any(knows(self) for knows in parts("peers"))


def _scheme_of(namespaces: Mapping[str, Namespace], name: str) -> str:
    namespace = namespaces.get(name)
    return "" if namespace is None else namespace.url.partition(":")[0]
