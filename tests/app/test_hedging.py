"""`check` warns where a hedged send may be delivered twice."""

from contextlib import AsyncExitStack

import pytest

from gateway.app.assembly.building import make_parts
from gateway.app.operations.checking import Grade, check
from gateway.app.runtime import Runtime
from gateway.config.file import parse
from gateway.domain.entity import EntityPath, QueueProperties

PAIR = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders", "bills"]
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
label = "east"
"""


async def warned(folder, text):
    """The queues that `check` warns of, once `bills` detects duplicates."""
    loaded = parse(PAIR + text, source="x.toml", folder=folder, environ={})
    async with AsyncExitStack() as stack:
        parts = await make_parts(stack, loaded.config, Runtime())
        await parts.broker.delete_queue(EntityPath("bills"))
        properties = QueueProperties(requires_duplicate_detection=True)
        await parts.broker.create_queue(EntityPath("bills"), properties)
    found = await check(loaded, Runtime())
    hedged = [each for each in found if "hedge_after" in each.text]
    assert {each.grade for each in hedged} <= {Grade.WARNING}
    return [each.subject for each in hedged]


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        ("", []),
        ('hedge_after = "300ms"', ["queue orders"]),
        ('[[entities]]\nmatch = "bills"\nhedge_after = "300ms"', []),
        ('[[entities]]\nmatch = "orders"\nhedge_after = "300ms"', ["queue orders"]),
    ],
)
async def test_check_warns_of_hedged_queues_that_detect_no_duplicates(tmp_path, text, queues):
    assert await warned(tmp_path, text) == queues
