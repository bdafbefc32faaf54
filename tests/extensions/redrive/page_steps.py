"""Steps of tests with the dead letters of a queue on the operators' page."""

import json
from collections.abc import Sequence
from typing import Any, Final

from gateway.domain.entity import EntityPath
from gateway.domain.message import DeadLetter, Message
from tests.frontends.admin.page_actions import click, text_of, type_into
from tests.harness.chromium import Browser

NOTE: Final = "document.getElementById('move-note').textContent"


def dead(number: int, **fields: Any) -> Message:
    fields = {"message_id": f"order-{number}", "body": b'{"order": %d}' % number, **fields}
    return Message(**fields)


async def bury(broker: Any, queue: EntityPath, messages: Sequence[Message]) -> None:
    await broker.send(queue.topic, messages)
    async with broker.open_receiver(queue) as receiver:
        found = 0
        while found < len(messages):
            for delivery in await receiver.receive(10):
                reason = "Unreadable" if found % 3 else "PriceMissing"
                await receiver.settle(delivery, DeadLetter(reason=reason))
                found += 1


def look(chromium: Browser, queue: str) -> None:
    click(chromium, "#queue-letters summary")
    type_into(chromium, "look-queue", queue)
    click(chromium, "#look")
    chromium.until("document.getElementById('looked').checkVisibility()")


def tick(chromium: Browser, *ids: str) -> None:
    for each in ids:
        click(chromium, f"#look-rows input[value={json.dumps(each)}]")


def try_and_move(chromium: Browser) -> str:
    """Return what the dry run has said; the messages are being moved then."""
    click(chromium, "#try")
    chromium.until("!document.getElementById('move').disabled")
    said = text_of(chromium, "move-note")
    click(chromium, "#move")
    return said


def figures(chromium: Browser) -> list[str]:
    chromium.until(f"/^(Done|Stopped)/.test({NOTE})")
    found = "[...document.querySelectorAll('#move-figures dd')].map(each => each.textContent)"
    return list(chromium.evaluate(found))
