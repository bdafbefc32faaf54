"""The findings of `pairgate check` about hedged queues."""

from contextlib import suppress

import trio

from gateway.app.operations.findings import ASK_SECONDS, Findings, Grade
from gateway.config.options import Config, Namespace
from gateway.domain.errors import BrokerError
from gateway.extensions.hedging.options import hedge_after
from gateway.ports import Broker


async def check_queues(
    broker: Broker, namespace: Namespace, config: Config, findings: Findings
) -> None:
    """Warn about each hedged queue of the primary that would deliver both copies of a message."""
    pairing = config.pairing
    if pairing is None or pairing.primary != namespace.name:
        return
    for queue in namespace.plan.queues:
        if hedge_after(queue.path, pairing.options) is None:
            continue
        detects = False
        with suppress(BrokerError, trio.TooSlowError), trio.fail_after(ASK_SECONDS):
            detects = (await broker.inspect(queue.path)).properties.requires_duplicate_detection
        if not detects:
            text = (
                "hedge_after may deliver a message twice: the queue isn't known to detect"
                " duplicates; turn its duplicate detection on, or make its receivers idempotent"
            )
            findings.add(f"queue {queue.path}", Grade.WARNING, text)
