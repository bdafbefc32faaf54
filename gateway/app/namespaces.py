"""Opens the configured namespaces; failures are reported with the namespace's name."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.runtime import Runtime
from gateway.config.endpoints import is_loopback
from gateway.config.kinds import Adapter, BrokerDependencies, build
from gateway.config.options import Namespace
from gateway.config.places import authority_of, hosts_of, is_own_url
from gateway.domain.entity import EntityPath
from gateway.domain.errors import (
    BrokerError,
    CredentialRefused,
    EntityNotFound,
    GatewayError,
    InvalidRequest,
    LoginRefused,
    NotAuthorized,
    Untrusted,
    locate,
    no_answer,
)
from gateway.domain.health.abilities import Abilities, Ability, Rights, remedy
from gateway.frontends.auth import EMULATOR_POLICY
from gateway.net.tls import TlsFileError
from gateway.ports import Broker
from gateway.store.embedded.broker import EmbeddedBroker
from gateway.store.embedded.files import StoreError, StoreInUse
from gateway.store.local.hooks import LocalHooks
from gateway.telemetry.abilities import AbilityWatch

ASK_SECONDS: Final = 10.0


def is_own(namespace: Namespace) -> bool:
    """True if this process itself stores the namespace, and therefore creates its queues."""
    return is_own_url(namespace.url)


def rights_of(namespace: Namespace) -> Rights:
    """The terms in which the namespace grants access."""
    scheme, _, _ = namespace.url.partition(":")
    kind, _, _ = scheme.partition("+")
    if kind in {"rabbitmq", "rabbitmqs"}:
        return Rights.RABBITMQ
    by_roles = getattr(namespace.options, "credential", None) is not None
    if kind == "storage-queue":
        return Rights.STORAGE_ROLES if by_roles else Rights.STORAGE
    return Rights.SERVICE_BUS_ROLES if by_roles else Rights.SERVICE_BUS


def is_to_come(namespace: Namespace) -> bool:
    """True if the namespace is an embedded store that doesn't exist (yet)."""
    scheme, _, path = namespace.url.partition(":")
    return scheme == "embedded" and not Path(path).exists()


def why_no_store(namespace: Namespace) -> str:
    path = namespace.url.partition(":")[2]
    named = f", which {namespace.source} names" if namespace.source else ""
    return (
        f"namespace {namespace.name}: there is no store at {path}{named};"
        " `pairgate serve` creates it. If it should exist, check the folder and --config"
    )


async def enter(
    stack: AsyncExitStack,
    namespace: Namespace,
    runtime: Runtime,
    hooks: LocalHooks | None = None,
) -> Adapter:
    """
    Open a namespace until the stack is closed. `hooks` are for a store of this process.

    Raises:
        Failure: the store is in use (temporary), damaged, or missing and not to be created; or the
            options don't fit the namespace.
    """
    adapter, abilities = _built(namespace, runtime, hooks)
    with failing_as(namespace):
        opened = await stack.enter_async_context(adapter)
    register(opened, abilities, runtime)
    return opened


def check_options(namespace: Namespace, runtime: Runtime) -> None:
    """
    Check that the options fit the namespace; nothing is opened.

    Raises:
        Failure: they don't.
    """
    if not is_to_come(namespace):
        _built(namespace, runtime)


def enter_later(stack: AsyncExitStack, namespace: Namespace, runtime: Runtime) -> Adapter:
    """As `enter`, but the caller opens the namespace, a store, when it can."""
    adapter, abilities = _built(namespace, runtime)
    stack.push_async_exit(adapter)
    register(adapter, abilities, runtime)
    return adapter


def _built(
    namespace: Namespace, runtime: Runtime, hooks: LocalHooks | None = None
) -> tuple[Adapter, AbilityWatch]:
    if is_to_come(namespace) and not runtime.makes_stores:
        raise Failure(why_no_store(namespace), ExitCode.WRONG)
    namespace = _with_credentials(namespace)
    abilities = make_abilities(namespace, runtime)
    dependencies = BrokerDependencies(
        clock=runtime.now,
        rng=runtime.rng(namespace.name),
        observer=runtime.observer,
        token_expiries=runtime.token_expiries,
        hooks=attrs.evolve(hooks or LocalHooks(), heard=abilities.heard),
    )
    with failing_as(namespace):
        adapter = build(namespace.url, namespace.name, dependencies, namespace.options)
    return adapter, abilities


@contextmanager
def failing_as(namespace: Namespace) -> Iterator[None]:
    """Raise Failure with the namespace's name if its opening fails within the context."""
    try:
        yield
    except TlsFileError as error:
        text = f"namespaces.{namespace.name}.tls.{error.field}: {error}"
        raise Failure(text, ExitCode.WRONG) from error
    except InvalidRequest as error:
        raise Failure(f"namespace {namespace.name}: {error}", ExitCode.WRONG) from error
    except StoreInUse as error:
        raise Failure(f"namespace {namespace.name}: {error}", ExitCode.TEMPORARY) from error
    except (StoreError, OSError) as error:
        raise Failure(f"namespace {namespace.name}: {error}") from error


def make_abilities(namespace: Namespace, runtime: Runtime) -> AbilityWatch:
    """The watch of a namespace that isn't open yet."""
    return AbilityWatch(
        clock=runtime.now,
        abilities=Abilities(rights=rights_of(namespace)),
        name=namespace.name,
        address=authority_of(namespace),
        observer=runtime.observer,
    )


def register(opened: Adapter, abilities: AbilityWatch, runtime: Runtime) -> None:
    """Measure the operations on an open namespace from now on."""
    opened.meter.start()
    runtime.meters[abilities.name] = opened.meter
    if isinstance(opened, EmbeddedBroker):
        runtime.commits[abilities.name] = opened.commits
    runtime.abilities[abilities.name] = abilities


async def check_credentials(broker: Broker, namespace: Namespace) -> str | None:
    """
    Probe the first configured queue or topic; return a doubt about it, or None.

    A namespace that can't be reached isn't probed further: a start during an outage must work.

    Raises:
        Failure: the credentials are refused, or the certificate isn't trusted.
    """
    entities = namespace.plan.queues or namespace.plan.topics
    if not entities:
        return None
    kind = "queue" if namespace.plan.queues else "topic"
    entity = entities[0].path
    try:
        with trio.fail_after(ASK_SECONDS):
            await broker.probe(entity)
    except NotAuthorized as error:
        locate(error, authority_of(namespace), str(entity))
        raise refused(namespace.name, error, rights_of(namespace)) from error
    except Untrusted as error:
        text = f"namespace {namespace.name}: {error}; {remedy(Ability.REACH, error)}"
        raise Failure(text, ExitCode.WRONG) from error
    except EntityNotFound:
        return f"{kind} {entity} is missing; `pairgate provision` creates it"
    except (BrokerError, trio.TooSlowError) as error:
        reason = reason_of(error, namespace, entity)
        return f"{kind} {entity}: {reason}"
    return None


def reason_of(
    error: GatewayError | trio.TooSlowError,
    namespace: Namespace,
    entity: EntityPath | None = None,
    seconds: float = ASK_SECONDS,
) -> str:
    """The problem of a namespace that was asked about the entity for `seconds` seconds."""
    address, asked = authority_of(namespace), "" if entity is None else str(entity)
    if isinstance(error, trio.TooSlowError):
        return str(no_answer(address, asked, seconds))
    if isinstance(error, BrokerError):
        locate(error, address, asked)
    return str(error)


def refused(name: str, error: NotAuthorized, rights: Rights = Rights.SERVICE_BUS) -> Failure:
    """The failure for refused credentials, which are an error of the configuration."""
    if isinstance(error, CredentialRefused):
        return Failure(f"namespace {name}: {error}; {remedy(Ability.SEND, error)}", ExitCode.WRONG)
    match rights:
        case Rights.SERVICE_BUS_ROLES | Rights.STORAGE_ROLES:
            advice = remedy(Ability.SEND, error, rights)
            cure = f"check namespaces.{name}.credential: {advice}"
        case Rights.RABBITMQ if isinstance(error, LoginRefused):
            cure = f"check the user in namespaces.{name}.url, and its password"
        case Rights.RABBITMQ:
            cure = f"{remedy(Ability.SEND, error, rights)}, which namespaces.{name}.url names"
        case Rights.STORAGE:
            cure = f"check the account's name in namespaces.{name}.url, and its key"
        case Rights.SERVICE_BUS:
            cure = f"check the key name or user in namespaces.{name}.url, and the key or password"
    return Failure(f"namespace {name} refuses the credentials: {error}; {cure}", ExitCode.WRONG)


def _with_credentials(namespace: Namespace) -> Namespace:
    """The namespace with the emulators' well-known key, if it has no key and is on loopback."""
    keyless = getattr(namespace.options, "credential", None) is None
    missing = keyless and getattr(namespace.options, "key", None) == "" and "://" in namespace.url
    hosts = hosts_of(namespace.url)
    if not missing or not hosts or not all(map(is_loopback, hosts)):
        return namespace
    (key,) = EMULATOR_POLICY.keys
    scheme, _, rest = namespace.url.partition("://")
    host = rest.rpartition("@")[2]
    return attrs.evolve(
        namespace,
        url=f"{scheme}://{EMULATOR_POLICY.name}@{host}",
        options=attrs.evolve(namespace.options, key=key),
    )


@attrs.frozen(kw_only=True)
class Sides:
    """The two open namespaces of a pair, and the spool if there is one."""

    primary: Broker
    secondary: Broker
    spool: Broker | None = None
