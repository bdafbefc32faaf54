"""Dead letters in a real RabbitMQ, on the page of a real gateway, in a real browser."""

from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.message import Complete
from tests.brokers.conftest import rabbits
from tests.brokers.rabbitmq.nodes import Nodes, client
from tests.e2e.commands import ADMIN
from tests.e2e.processes import Gateways
from tests.extensions.redrive.page_steps import bury, dead, figures, tick, try_and_move
from tests.frontends.admin.page_actions import READ, chromium, click, text_of, type_into
from tests.harness.chromium import Browser
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import USER
from tests.harness.secret_files import write_secret

__all__ = ["chromium", "rabbits"]

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.shared]

QUEUE: Final = EntityPath("seen-on-the-page")
LOOK: Final = f"button[aria-label='Look at the dead letters of {QUEUE}']"


def config(nodes: Nodes, folder: Path) -> str:
    write_secret(folder / "password", USER)
    return f"""[namespaces.rabbit]
url = "rabbitmq://{USER}@127.0.0.1:{nodes.port("primary")}/"
management = "{nodes.management("primary")}"
password = {{ file = "{folder / "password"}" }}
{ADMIN}"""


def move_one(chromium: Browser, url: str) -> tuple[str, str, list[str]]:
    """Move the second of three; return the texts of the look and the dry run, and the figures."""
    chromium.show(url)
    chromium.until(READ)
    click(chromium, "#queue-letters summary")
    click(chromium, "#list")
    click(chromium, LOOK)
    chromium.until("document.querySelectorAll('#look-rows tr').length === 3")
    shown = text_of(chromium, "looked")
    tick(chromium, "order-2")
    type_into(chromium, "move-set", "price=7")
    said = try_and_move(chromium)
    return shown, said, figures(chromium)


async def test_dead_letters_in_rabbitmq_are_listed_seen_tried_edited_and_moved(
    chromium: Browser, gateways: Gateways, rabbits: Nodes, tmp_path: Path
) -> None:
    gateway = await gateways.start(config(rabbits, tmp_path))
    async with client(rabbits.port("primary")) as broker:
        await broker.create_queue(QUEUE, QueueProperties())
        await bury(broker, QUEUE, [dead(1), dead(2), dead(3)])
        move = partial(move_one, chromium, f"http://127.0.0.1:{gateway.port}/")
        shown, said, counted = await trio.to_thread.run_sync(move)
        with trio.fail_after(PATIENCE):
            async with broker.open_receiver(QUEUE) as receiver:
                [moved] = await receiver.receive(10)
                await receiver.settle(moved, Complete())
        left = (await broker.inspect(QUEUE.dead_letter)).active

    for text in ("PriceMissing", "Unreadable", "order-1", '{"order": 3}'):
        assert text in shown
    assert f"1 message would be moved to {QUEUE}, with price=7." in said
    assert counted == ["1 of 1", "0", "0"]
    assert (moved.message.message_id, moved.message.properties["price"]) == ("order-2", "7")
    assert left == 2
    assert chromium.complaints == []
