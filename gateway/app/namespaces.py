"""Opens the configured namespaces; what goes wrong with one is said with its name."""

from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.brokers.embedded.files import StoreError, StoreInUse
from gateway.brokers.registry import Adapter, Surroundings, build
from gateway.config.checks import host_of, is_loopback
from gateway.config.options import Namespace
from gateway.domain.errors import (
    BrokerError,
    EntityNotFound,
    InvalidRequest,
    NotAuthorized,
    Untrusted,
)
from gateway.frontends.auth import EMULATOR_POLICY
from gateway.net.tls import TlsFileError
from gateway.ports import Broker

OWN_KINDS: Final = ("embedded:", "memory:")
ASK_SECONDS: Final = 10.0


def is_own(namespace: Namespace) -> bool:
    """Whether the namespace is kept by this very process: then it makes its queues itself."""
    return namespace.url.startswith(OWN_KINDS)


async def enter(stack: AsyncExitStack, namespace: Namespace, outside: Outside) -> Adapter:
    """
    Open a namespace until the stack is closed.

    Raises:
        Failure: the store is in use (temporary) or damaged, or the options don't fit.
    """
    namespace = _with_credentials(namespace)
    surroundings = Surroundings(
        clock=outside.now, rng=outside.rng(namespace.name), observer=outside.observer
    )
    try:
        adapter = build(namespace.url, namespace.name, surroundings, namespace.options)
        opened = await stack.enter_async_context(adapter)
    except (InvalidRequest, TlsFileError) as error:
        raise Failure(f"namespace {namespace.name}: {error}", ExitCode.WRONG) from error
    except StoreInUse as error:
        raise Failure(f"namespace {namespace.name}: {error}", ExitCode.TEMPORARY) from error
    except (StoreError, OSError) as error:
        raise Failure(f"namespace {namespace.name}: {error}") from error
    opened.meter.start()
    outside.meters[namespace.name] = opened.meter
    return opened


async def check_credentials(broker: Broker, namespace: Namespace) -> str | None:
    """
    Ask whether the first configured queue or topic can be sent to; return what is doubtful.

    A namespace that can't be reached isn't asked further: starting in an outage must work.

    Raises:
        Failure: the credentials are refused, or the certificate isn't trusted.
    """
    await trio.lowlevel.checkpoint()
    entities = namespace.plan.queues or namespace.plan.topics
    if not entities:
        return None
    kind = "queue" if namespace.plan.queues else "topic"
    entity = entities[0].path
    try:
        with trio.fail_after(ASK_SECONDS):
            await broker.probe(entity)
    except NotAuthorized as error:
        raise refused(namespace.name, error) from error
    except Untrusted as error:
        text = f"namespace {namespace.name} isn't trusted: {error}; set its tls.ca"
        raise Failure(text, ExitCode.WRONG) from error
    except EntityNotFound:
        return f"{kind} {entity} is missing; `pairgate provision` makes it"
    except (BrokerError, trio.TooSlowError) as error:
        reason = str(error) or f"no answer within {ASK_SECONDS:.0f} s"
        return f"{kind} {entity}: {reason}"
    return None


def refused(name: str, error: NotAuthorized) -> Failure:
    """Wrong credentials are a wrong configuration."""
    return Failure(
        f"namespace {name} refuses the credentials: {error};"
        f" check the key name in namespaces.{name}.url, and the key",
        ExitCode.WRONG,
    )


def _with_credentials(namespace: Namespace) -> Namespace:
    """On this machine a namespace without a key is asked with the emulators' well-known one."""
    missing = getattr(namespace.options, "key", None) == "" and "://" in namespace.url
    if not missing or not is_loopback(host_of(namespace.url)):
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
    """The two open namespaces of a pair, and the spool where one is configured."""

    primary: Broker
    secondary: Broker
    spool: Broker | None = None
