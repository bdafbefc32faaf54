"""Wraps a broker in packing or the claim check, and opens the store for bodies."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

from gateway.app.assembly.wrapper_rows import Wrapping
from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.findings import Findings, Grade
from gateway.app.runtime import Runtime
from gateway.brokers.entra.options import STORAGE_SCOPE
from gateway.brokers.storage_queue.blob_client import BlobClient
from gateway.config.kinds import BrokerDependencies, access_tokens
from gateway.config.options import Config
from gateway.domain.errors import BrokerError, GatewayError, NotAuthorized, Untrusted
from gateway.domain.events.gateway import Doubtful
from gateway.domain.message import Message
from gateway.extensions.claims import claim as claims
from gateway.extensions.claims.azure_blob_store import AzureBlobStore
from gateway.extensions.claims.broker import ClaimedBroker
from gateway.extensions.claims.claim_check import ClaimCheck, MessageCodec
from gateway.extensions.claims.encryption import TAG
from gateway.extensions.claims.folder import FolderStore
from gateway.extensions.claims.options import CLAIMS, Claims, PackingRule
from gateway.extensions.claims.packing import PackedBroker
from gateway.extensions.claims.receiver import ClaimDependencies
from gateway.pairing.options import BacklogTimeToLive
from gateway.ports import Broker
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.azure_blob import parse_blob_account

FOLDER: Final = "folder:"
CODEC: Final = MessageCodec(encode=encode_message, decode=decode_message)
PROBE: Final = b"Pairgate has looked whether it can write here."


def pack(wrapping: Wrapping, broker: Broker, rules: tuple[PackingRule, ...]) -> PackedBroker:
    """The broker with packing by these rules."""
    runtime = wrapping.runtime
    return PackedBroker(
        broker=broker, rules=rules, codec=CODEC, clock=runtime.now, new_id=runtime.new_id
    )


async def refer(wrapping: Wrapping, broker: Broker, settings: Claims) -> ClaimedBroker:
    """
    The broker with the claim check, whose store the stack closes.

    If a remote store doesn't answer, its state is assumed to be right: a start during an outage
    must work.

    Raises:
        Failure: the store's folder can't be created, or the service refuses the credentials.
    """
    runtime, pairing = wrapping.runtime, wrapping.config.pairing
    restarts = pairing is not None and pairing.syphon.backlog_ttl is BacklogTimeToLive.RESTART
    claim_check = await _open_claim_check(wrapping.stack, settings, runtime, lives_anew=restarts)
    dependencies = ClaimDependencies(
        clock=runtime.now, rng=runtime.rng("claims"), observer=runtime.observer
    )
    return ClaimedBroker(broker=broker, claim_check=claim_check, dependencies=dependencies)


async def _open_claim_check(
    stack: AsyncExitStack, settings: Claims, runtime: Runtime, *, lives_anew: bool
) -> ClaimCheck:
    store = await _opened(stack, settings, runtime)
    await _prepare(store, settings, runtime)
    return ClaimCheck(
        store=store,
        options=settings.options,
        codec=CODEC,
        clock=runtime.now,
        new_id=runtime.new_id,
        observer=runtime.observer,
        rng=runtime.rng("claim keys"),
        lives_anew=lives_anew,
    )


async def check_store(config: Config, runtime: Runtime, findings: Findings) -> None:
    """Add the finding whether bodies can be written, read and deleted."""
    settings = config.of(CLAIMS)
    if settings is None:
        return
    if settings.store.startswith(FOLDER):
        path = trio.Path(settings.store.removeprefix(FOLDER))
        if not await path.exists():
            findings.add("claims", Grade.GOOD, "no store yet; `pairgate serve` creates it")
            return
    problem = await _problem_of(settings, runtime)
    if problem is None:
        findings.add("claims", Grade.GOOD, "bodies can be written, read and deleted")
    else:
        findings.add("claims", Grade.BAD, problem)


async def _problem_of(settings: Claims, runtime: Runtime) -> str | None:
    """Write, read and delete a test body; return the problem, or None."""
    name, problem = claims.new_id(runtime.new_id(), Message(), runtime.now()), None
    try:
        with trio.fail_after(settings.options.timeout):
            async with AsyncExitStack() as stack:
                store = await _opened(stack, settings, runtime)
                await store.put(name, PROBE)
                if await store.get(name, len(PROBE)) != PROBE:
                    problem = "a test body was read back changed"
                await store.remove(name)
    except trio.TooSlowError:
        problem = f"no answer within {settings.options.timeout:g} s"
    except GatewayError as error:
        hint = "; `pairgate serve` creates it" if "ContainerNotFound" in str(error) else ""
        problem = f"{error}{hint}"
    return problem


Store = FolderStore | AzureBlobStore


async def _opened(stack: AsyncExitStack, settings: Claims, runtime: Runtime) -> Store:
    if settings.store.startswith(FOLDER):
        return FolderStore(Path(settings.store.removeprefix(FOLDER)))
    text = settings.connection_string or settings.store.partition(":")[2]
    credential = settings.credential
    account = parse_blob_account(text, settings.key, needs_key=credential is None)
    access = None
    if credential is not None:
        dependencies = BrokerDependencies(
            clock=runtime.now,
            rng=runtime.rng("claims"),
            observer=runtime.observer,
            token_expiries=runtime.token_expiries,
        )
        timeout = settings.options.timeout
        access = access_tokens(credential, STORAGE_SCOPE, "claims", timeout, dependencies)
    most = settings.options.max_body + TAG
    client = BlobClient(account, settings.container, runtime.now, most, access=access)
    store = AzureBlobStore(client)
    return await stack.enter_async_context(store)


async def _prepare(store: Store, settings: Claims, runtime: Runtime) -> None:
    try:
        with trio.fail_after(settings.options.timeout):
            await store.prepare()
    except (NotAuthorized, Untrusted) as error:
        raise Failure(f"claims: {error}", ExitCode.WRONG) from error
    except (BrokerError, trio.TooSlowError) as error:
        reason = str(error) or f"no answer within {settings.options.timeout:g} s"
        if isinstance(store, FolderStore):
            raise Failure(f"claims: {reason}") from error
        runtime.observer.report(Doubtful(text=f"claims: {reason}"))
