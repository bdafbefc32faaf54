"""The receipt of a put: the namespace's own, if the primary of the pair has it."""

import random
from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest

from gateway.capabilities.receipts import record_sent
from gateway.domain.entity import EntityPath
from gateway.domain.message import AcceptedBy, Message
from gateway.frontends.client_tokens import OpenTokens
from gateway.frontends.storage_queue.messages import UNNUMBERED, read_receipt
from gateway.frontends.storage_queue.operations import StorageOperations
from gateway.ports import Broker
from gateway.store.local.memory import MemoryBroker
from gateway.store.local.visibility import LocalVisibility
from gateway.wire.storage_queue import operations as storage
from tests.harness.clocks import VirtualClock

TOKEN = b"a token of the namespace, long enough for a receipt"
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@attrs.frozen
class Accepts:
    """A broker that accepts each message, and tells its token."""

    accepted_by: AcceptedBy
    token: bytes | None

    async def send_diverting(self, entity: EntityPath, messages: Sequence[Message]) -> AcceptedBy:
        record_sent(self.token)
        return self.accepted_by


def marks(text: bytes) -> list[bytes]:
    return [b"m" * 32]


@pytest.mark.parametrize(
    ("accepted_by", "token", "is_own"),
    [
        (AcceptedBy.PRIMARY, TOKEN, True),
        (AcceptedBy.PRIMARY, None, False),
        (AcceptedBy.BACKLOG, TOKEN, False),
    ],
    ids=["a text", "more than a text", "diverted"],
)
async def test_a_put_has_the_receipt_of_the_namespace_if_the_primary_accepted_it(
    accepted_by: AcceptedBy, token: bytes | None, is_own: bool, autojump_clock: Any
) -> None:
    clock = VirtualClock()
    operations = StorageOperations(
        broker=cast(Broker, Accepts(accepted_by, token)),
        visibility=LocalVisibility(MemoryBroker(clock, random.Random(0))),
        sends=True,
        wall_clock=clock,
        marks=marks,
    )

    put = storage.PutMessage(queue="orders", body=b"text", visibility=0, time_to_live=60)
    answer, _ = await operations.run(put, ID)

    assert isinstance(answer, storage.Messages)
    receipt = read_receipt(answer.items[0].pop_receipt or "", ID, marks)
    assert receipt is not None
    if is_own:
        assert OpenTokens().unseal(EntityPath("orders"), receipt.token) == TOKEN
    else:
        assert receipt == UNNUMBERED
