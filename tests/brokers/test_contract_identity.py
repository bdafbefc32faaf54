"""The contract of namespaces that report their identity."""

from typing import Any

from gateway.capabilities import Identifies
from gateway.domain.identity import parse_identity
from gateway.offering import required
from tests.brokers.kinds import Capability, needs


@needs(Capability.IDENTITY)
async def test_a_namespace_says_who_it_is_and_says_it_again(broker: Any) -> None:
    told = await required(broker, Identifies).identity()

    assert await required(broker, Identifies).identity() == told
    assert parse_identity(str(told)) == told
