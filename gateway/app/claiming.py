"""Puts claim check and packing between a broker and clients, and opens the store for bodies."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import trio

from gateway.app.failure import ExitCode, Failure
from gateway.app.outside import Outside
from gateway.brokers.azure_blob import AzureBlobStore
from gateway.claims.broker import ClaimedBroker
from gateway.claims.collector import Collector
from gateway.claims.desk import ClaimDesk, Codec
from gateway.claims.folder import FolderStore
from gateway.claims.packing import PackedBroker
from gateway.claims.receiver import Surroundings
from gateway.config.options import Claims, Config
from gateway.domain import claim as claims
from gateway.domain.errors import BrokerError, GatewayError, NotAuthorized, Untrusted
from gateway.domain.events import Doubtful
from gateway.domain.message import Message
from gateway.pairing.options import BacklogTimeToLive
from gateway.ports import Broker, Service
from gateway.wire.amqp.message import decode_message, encode_message
from gateway.wire.blob import parse_blob_account

FOLDER: Final = "folder:"
CODEC: Final = Codec(encode=encode_message, decode=decode_message)
PROBE: Final = b"Pairgate has looked whether it can write here."


async def with_claims(
    stack: AsyncExitStack, config: Config, broker: Broker, outside: Outside
) -> tuple[Broker, Sequence[Service]]:
    """
    What clients see of that broker, and what must run for it; the stack closes the store.

    A store on the network that doesn't answer is taken on trust: starting in an outage must work.

    Raises:
        Failure: the folder can't be made, or the service refuses the credentials.
    """
    await trio.lowlevel.checkpoint()
    seen, services = broker, list[Service]()
    if config.claims is not None:
        pairing = config.pairing
        restarts = pairing is not None and pairing.syphon.backlog_ttl is BacklogTimeToLive.RESTART
        desk = await _open_desk(stack, config.claims, outside, lives_anew=restarts)
        around = Surroundings(
            clock=outside.now, rng=outside.rng("claims"), observer=outside.observer
        )
        seen = ClaimedBroker(broker=seen, desk=desk, around=around)
        services.append(Collector(desk))
    if config.packing:
        seen = packed = PackedBroker(
            broker=seen,
            rules=config.packing,
            codec=CODEC,
            clock=outside.now,
            new_id=outside.new_id,
        )
        services.append(packed)
    return seen, services


async def _open_desk(
    stack: AsyncExitStack, settings: Claims, outside: Outside, *, lives_anew: bool
) -> ClaimDesk:
    store = await _opened(stack, settings, outside)
    await _prepare(store, settings, outside)
    return ClaimDesk(
        store=store,
        options=settings.options,
        codec=CODEC,
        clock=outside.now,
        new_id=outside.new_id,
        observer=outside.observer,
        lives_anew=lives_anew,
    )


async def check_claims(settings: Claims, outside: Outside) -> str | None:
    """Write, read and remove a body of no message; return what is wrong."""
    name, problem = claims.new_id(outside.new_id(), Message(), outside.now()), None
    try:
        with trio.fail_after(settings.options.timeout):
            async with AsyncExitStack() as stack:
                store = await _opened(stack, settings, outside)
                await store.put(name, PROBE)
                if await store.get(name, len(PROBE)) != PROBE:
                    problem = "what was written isn't what is read"
                await store.remove(name)
    except trio.TooSlowError:
        problem = f"no answer within {settings.options.timeout:g} s"
    except GatewayError as error:
        hint = "; `pairgate serve` makes it" if "ContainerNotFound" in str(error) else ""
        problem = f"{error}{hint}"
    await trio.lowlevel.checkpoint()
    return problem


Store = FolderStore | AzureBlobStore


async def _opened(stack: AsyncExitStack, settings: Claims, outside: Outside) -> Store:
    await trio.lowlevel.checkpoint()
    if settings.store.startswith(FOLDER):
        return FolderStore(Path(settings.store.removeprefix(FOLDER)))
    text = settings.connection_string or settings.store.partition(":")[2]
    account = parse_blob_account(text, settings.key)
    store = AzureBlobStore(account, settings.container, outside.now, settings.options.max_body)
    return await stack.enter_async_context(store)


async def _prepare(store: Store, settings: Claims, outside: Outside) -> None:
    await trio.lowlevel.checkpoint()
    try:
        with trio.fail_after(settings.options.timeout):
            await store.prepare()
    except (NotAuthorized, Untrusted) as error:
        raise Failure(f"claims: {error}", ExitCode.WRONG) from error
    except (BrokerError, trio.TooSlowError) as error:
        reason = str(error) or f"no answer within {settings.options.timeout:g} s"
        if isinstance(store, FolderStore):
            raise Failure(f"claims: {reason}") from error
        outside.observer.report(Doubtful(text=f"claims: {reason}"))
