"""The file as values: which part's options stand where, and what no part defines itself."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import validators

from gateway.claims.options import ClaimOptions, PackingRule
from gateway.config.values import Secret
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.accounts import StorageAccount, check_account_name
from gateway.domain.backoff import Backoff
from gateway.domain.envelope import EnvelopeKey
from gateway.domain.plan import Plan
from gateway.domain.staffing import StaffingOptions
from gateway.frontends.admin import AdminOptions
from gateway.frontends.amqp.options import AmqpOptions
from gateway.frontends.leases import LeaseOptions
from gateway.frontends.servicebus_rest import RestOptions
from gateway.frontends.storage_queue import StorageQueueOptions
from gateway.listener.options import ListenerOptions as HandlingOptions
from gateway.net.http_server import HttpServerOptions
from gateway.net.listeners import ListenerOptions
from gateway.net.sniffing import SniffingOptions
from gateway.net.tls import TlsOptions
from gateway.pairing.options import EntityRule, PairOptions, SyphonOptions
from gateway.telemetry.log import LEVELS

# What `serve` does without a file; conf/pairgate.toml says the same, with every option.
DEFAULT_WITHOUT_AMQP: Final = """
[namespaces.east]
url = "embedded:var/east.db"

[namespaces.west]
url = "embedded:var/west.db"

[pairing]
primary = "east"
secondary = "west"
label = "east"
enable_syphon = true

[[endpoints]]
protocol = "service-bus-http"
bind = "127.0.0.1:5300"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:10001"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:9640"
"""
DEFAULT: Final = f"""
[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:5672"
{DEFAULT_WITHOUT_AMQP}"""

ONE_PORT: Final = "service-bus"  # AMQP, AMQP over WebSocket, REST; each plain, or in TLS
AMQP: Final = "amqp"  # AMQP, and AMQP over WebSocket
STORAGE_QUEUE: Final = "storage-queue"
ADMIN: Final = "admin"  # health, and figures for scalers
PROTOCOLS: Final = (ONE_PORT, AMQP, "service-bus-http", STORAGE_QUEUE, ADMIN)
FORMATS: Final = ("auto", "console", "json")
SHORTEST_KEY: Final = 16  # bytes


# Metadata of a field whose options stand in the table around it, not in one of their own.
FLAT: Final = {"flat": True}


@attrs.frozen(kw_only=True)
class Namespace:
    """`[namespaces.NAME]`: `options` is of the class that the URL's kind asks for."""

    name: str = ""  # filled in from its table's name
    url: str
    queues: tuple[str, ...] = ()  # made by `serve` (where it owns the store) and `provision`
    entities: Path | None = None  # a Config.json of the emulator; made in the same way
    plan: Plan = attrs.field(factory=Plan)  # filled in from both
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
    accept_legacy_backlog: bool = False
    syphon: SyphonOptions = attrs.field(factory=SyphonOptions)


@attrs.frozen(kw_only=True)
class Claims:
    """`[claims]`: without it every body stays in its message."""

    store: str  # folder:PATH or azure-blob:CONNECTION_STRING, without its key
    container: str = "pairgate-claims"  # of azure-blob
    key: str = attrs.field(default="", repr=False)
    connection_string: str = attrs.field(default="", repr=False)  # in place of both
    options: ClaimOptions = attrs.field(factory=ClaimOptions, metadata=FLAT)


@attrs.frozen(kw_only=True)
class Endpoint:
    """`[[endpoints]]`."""

    protocol: str = attrs.field(validator=validators.in_(PROTOCOLS))
    bind: str
    tls: TlsOptions | None = None


@attrs.frozen(kw_only=True)
class Limits:
    """`[limits]`, of each endpoint."""

    grace: float = attrs.field(default=10.0, validator=validators.ge(0.0))  # to drain in, seconds
    listener: ListenerOptions = attrs.field(factory=ListenerOptions, metadata=FLAT)
    http: HttpServerOptions = attrs.field(factory=HttpServerOptions, metadata=FLAT)
    sniffing: SniffingOptions = attrs.field(factory=SniffingOptions, metadata=FLAT)
    rest: RestOptions = attrs.field(factory=RestOptions)
    amqp: AmqpOptions = attrs.field(factory=AmqpOptions)
    storage: StorageQueueOptions = attrs.field(factory=StorageQueueOptions)
    leases: LeaseOptions = attrs.field(factory=LeaseOptions)
    admin: AdminOptions = attrs.field(factory=AdminOptions)


@attrs.frozen(kw_only=True)
class TriggerTopic:
    """
    `[triggers]`: the gateway announces what comes to its queues over a topic, and `pairgate listen`
    reads that. Without it, listeners hear of it from the endpoint `admin` only.
    """

    topic: str = attrs.field(validator=validators.min_len(1))
    namespace: str | None = None  # that keeps the topic; None: the primary
    # What comes to a queue in so many seconds after a trigger is one more.
    window: float = attrs.field(default=0.02, validator=validators.ge(0.001))
    time_to_live: float = attrs.field(default=60.0, validator=validators.ge(1.0))  # of a trigger


@attrs.frozen(kw_only=True)
class Listen:
    """`[listener]`, of `pairgate listen`."""

    # Of one call of an endpoint or a command.
    handler_timeout: float = attrs.field(default=60.0, validator=validators.gt(0.0))
    # URLs of the admin endpoints of all gateways before the namespace; none: `[triggers]`, else the
    # gateway found here.
    triggers: tuple[str, ...] = ()
    metrics: str | None = None  # HOST:PORT of an endpoint with its figures; None: there is none
    options: HandlingOptions = attrs.field(factory=HandlingOptions, metadata=FLAT)


@attrs.frozen(kw_only=True)
class AgentListener:
    """One of `[[agent.listeners]]`: what `pairgate listen` is started with, and how often."""

    queues: str  # as "urgent:8 bulk:2"
    # Exactly one of these.
    to: str | None = None
    exec: str | None = None
    python: str | None = None
    arguments: tuple[str, ...] = ()  # further ones of `pairgate listen`
    # Handlers of one process that run at once; None: those of [listener].
    parallel: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(1))
    )
    rule: str | None = None  # a function in place of the three rules
    staffing: StaffingOptions = attrs.field(factory=StaffingOptions, metadata=FLAT)


@attrs.frozen(kw_only=True)
class Agent:
    """`[agent]`, of `pairgate agent`. Times are seconds."""

    gateway: str | None = None  # the URL of its admin endpoint; None: the one found here
    interval: float = attrs.field(default=5.0, validator=validators.gt(0.0))  # between two looks
    # The same while nothing waits, where the gateway announces what comes.
    idle_interval: float = attrs.field(default=60.0, validator=validators.gt(0.0))
    # Of all processors; above it there are no more processes.
    max_load: float = attrs.field(default=0.9, validator=[validators.gt(0.0), validators.le(1.0)])
    grace: float = attrs.field(default=30.0, validator=validators.ge(0.0))  # to SIGKILL
    restart: Backoff = Backoff(first=1.0, cap=60.0)  # of processes that end by themselves
    listeners: tuple[AgentListener, ...] = ()


@attrs.frozen(kw_only=True)
class Logging:
    """`[logging]`."""

    level: str = attrs.field(default="info", validator=validators.in_(LEVELS))
    format: str = attrs.field(default="auto", validator=validators.in_(FORMATS))


@attrs.frozen(kw_only=True)
class EnvelopeKeyEntry:
    """One of `pairing.envelope_keys`."""

    id: str = attrs.field(validator=validators.min_len(1))
    key: Secret = attrs.field()

    @key.validator
    def _long_enough(self, _: object, key: Secret) -> None:
        if len(key.text.encode()) < SHORTEST_KEY:
            raise ValueError(f"at least {SHORTEST_KEY} bytes expected")

    def value(self) -> EnvelopeKey:
        return EnvelopeKey(id=self.id, key=self.key.text.encode())


@attrs.frozen(kw_only=True)
class AccessEntry:
    """`[[access]]`: two keys, so that one can be changed while clients still use the other."""

    name: str = attrs.field(validator=validators.min_len(1))
    key: Secret
    second_key: Secret | None = None
    rights: tuple[Right, ...] = attrs.field(validator=validators.min_len(1))
    entities: tuple[str, ...] = attrs.field(default=("*",), validator=validators.min_len(1))

    def value(self) -> AccessPolicy:
        keys = [key.text for key in (self.key, self.second_key) if key is not None]
        return AccessPolicy(
            name=self.name,
            keys=tuple(keys),
            rights=frozenset(self.rights),
            entities=self.entities,
        )


@attrs.frozen(kw_only=True)
class AccountEntry:
    """`[[accounts]]`: as `[[access]]`, for the Queue service."""

    name: str = attrs.field()
    key: Secret
    second_key: Secret | None = None

    @name.validator
    def _is_name(self, _: object, name: str) -> None:
        check_account_name(name)

    def value(self) -> StorageAccount:
        secrets = [("key", self.key), ("second_key", self.second_key)]
        keys = [_decoded_key(field, key.text) for field, key in secrets if key is not None]
        return StorageAccount(name=self.name, keys=tuple(keys))


def _decoded_key(field: str, text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) < SHORTEST_KEY:
        raise ValueError(f"{field}: at least {SHORTEST_KEY} bytes in Base64 expected")
    return key


@attrs.frozen(kw_only=True)
class Config:
    """The whole file. `folder` is where it lies: relative paths start there."""

    namespaces: Mapping[str, Namespace] = attrs.field(validator=validators.min_len(1))
    pairing: Pairing | None = None
    claims: Claims | None = None
    packing: tuple[PackingRule, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    access: tuple[AccessPolicy, ...] = ()
    accounts: tuple[StorageAccount, ...] = ()
    entities: tuple[EntityRule, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    listener: Listen = attrs.field(factory=Listen)
    agent: Agent = attrs.field(factory=Agent)
    triggers: TriggerTopic | None = None
    logging: Logging = attrs.field(factory=Logging)

    @property
    def home(self) -> Namespace:
        """The primary; without a pair the only namespace, but for one that just keeps triggers."""
        if self.pairing is not None:
            return self.namespaces[self.pairing.primary]
        keeper = None if self.triggers is None else self.triggers.namespace
        others = (space for name, space in self.namespaces.items() if name != keeper)
        return next(others, next(iter(self.namespaces.values())))
