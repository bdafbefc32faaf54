"""The finding of `pairgate check` about queues that can't be received from in an outage."""

from contextlib import suppress

import trio

from gateway.app.operations.findings import ASK_SECONDS, Findings, Grade
from gateway.capabilities import Topology
from gateway.config.options import Config, Namespace
from gateway.domain.errors import BrokerError, EntityNotFound
from gateway.extensions.receive_in_outage.options import (
    RECEIVE_IN_OUTAGE,
    sessions_refused,
    topic_refused,
)
from gateway.offering import offered
from gateway.ports import Broker


async def check_queues(
    broker: Broker, namespace: Namespace, config: Config, findings: Findings
) -> None:
    """Refuse topics and queues that require sessions, as far as the primary describes them."""
    pairing = config.pairing
    if pairing is None or pairing.primary != namespace.name:
        return
    topology = offered(broker, Topology)
    for entity in pairing.options.of(RECEIVE_IN_OUTAGE).queues:
        refused: str | None = None
        with suppress(BrokerError, trio.TooSlowError), trio.fail_after(ASK_SECONDS):
            try:
                if (await broker.inspect(entity)).requires_session:
                    refused = sessions_refused(entity)
            except EntityNotFound:
                if topology is not None:
                    await topology.inspect_topic(entity)
                    refused = topic_refused(entity)
        if refused is not None:
            findings.add(f"queue {entity}", Grade.BAD, f"receive_in_outage: {refused}")
