"""The findings of `pairgate check` about queues that can't be received from in an outage."""

from collections.abc import Sequence
from contextlib import suppress

import trio

from gateway.app.operations.findings import ASK_SECONDS, Findings, Grade
from gateway.capabilities import Topology
from gateway.config.options import Config, Namespace
from gateway.domain.backlog import listing_prefix
from gateway.domain.entity import EntityPath
from gateway.domain.errors import BrokerError, EntityNotFound, NotAuthorized, NotSupported
from gateway.extensions.receive_in_outage.options import (
    RECEIVE_IN_OUTAGE,
    ReceiveInOutageOptions,
    sessions_refused,
    topic_refused,
)
from gateway.offering import offered
from gateway.pairing.entity_cache import list_known
from gateway.ports import Broker


async def check_queues(
    broker: Broker, namespace: Namespace, config: Config, findings: Findings
) -> None:
    """
    Refuse topics, and queues that require sessions where the secondary has none, as far as the
    primary describes them, and patterns for a secondary that doesn't list its queues.
    """
    pairing = config.pairing
    if pairing is None:
        return
    wanted = pairing.options.of(RECEIVE_IN_OUTAGE)
    if pairing.primary == namespace.name:
        await _check_named(broker, config, wanted.queues, findings)
        if wanted.patterns:
            await _check_matching(broker, config, wanted, pairing.options.label, findings)
    if pairing.secondary == namespace.name and wanted.patterns:
        await _check_listing(broker, namespace, pairing.options.label, findings)


async def _check_named(
    broker: Broker, config: Config, queues: Sequence[EntityPath], findings: Findings
) -> None:
    topology = offered(broker, Topology)
    for entity in queues:
        refused: str | None = None
        with suppress(BrokerError, trio.TooSlowError), trio.fail_after(ASK_SECONDS):
            try:
                if (await broker.inspect(entity)).requires_session:
                    refused = sessions_refused(config, entity)
            except EntityNotFound:
                if topology is not None:
                    await topology.inspect_topic(entity)
                    refused = topic_refused(entity)
        if refused is not None:
            findings.add(f"queue {entity}", Grade.BAD, f"receive_in_outage: {refused}")


async def _check_matching(
    broker: Broker, config: Config, wanted: ReceiveInOutageOptions, label: str, findings: Findings
) -> None:
    with suppress(BrokerError, trio.TooSlowError), trio.fail_after(ASK_SECONDS):
        for info in await list_known(broker):
            if info.requires_session and wanted.queue_of(label, info.path):
                refused = sessions_refused(config, info.path)
                if refused is not None:
                    text = f"receive_in_outage: {refused}"
                    findings.add(f"queue {info.path}", Grade.NOTE, text)


async def _check_listing(
    broker: Broker, namespace: Namespace, label: str, findings: Findings
) -> None:
    try:
        with trio.fail_after(ASK_SECONDS):
            await broker.list_queues(listing_prefix(label), top=1)
    except (NotAuthorized, NotSupported) as error:
        findings.add(
            f"namespace {namespace.name}",
            Grade.BAD,
            "receive_in_outage: syphons find the backlog queues of a pattern in the namespace's"
            f" list of queues, which can't be read ({error}): give each queue by its name",
        )
    except (BrokerError, trio.TooSlowError):
        return  # another finding says that it doesn't answer
