"""The finding of `pairgate check` about queues whose order isn't kept."""

from contextlib import suppress

import trio

from gateway.app.operations.findings import ASK_SECONDS, Findings, Grade
from gateway.config.options import Config, Namespace
from gateway.domain.errors import BrokerError
from gateway.extensions.order.keys import is_ordered
from gateway.extensions.order.options import ORDERED
from gateway.extensions.order.sessions import sentence
from gateway.pairing.entity_cache import MOST_LISTED, PAGE
from gateway.ports import Broker


async def check_queues(
    broker: Broker, namespace: Namespace, config: Config, findings: Findings
) -> None:
    """Warn about the primary's queues that require sessions, as far as it lists its queues."""
    pairing = config.pairing
    if pairing is None or pairing.primary != namespace.name:
        return
    names, patterns = list[str](), pairing.options.of(ORDERED).ordered
    with suppress(BrokerError, trio.TooSlowError), trio.fail_after(ASK_SECONDS):
        for skip in range(0, MOST_LISTED, PAGE):
            page = await broker.list_queues(skip=skip, top=PAGE)
            names += [
                str(info.path)
                for info in page
                if info.requires_session and not is_ordered(info.path, patterns)
            ]
            if len(page) < PAGE:
                break
    if names:
        findings.add(f"namespace {namespace.name}", Grade.WARNING, sentence(names))
