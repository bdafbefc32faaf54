"""Dead letters of a queue on the operators' page, in a real browser."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import pytest

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import OutcomeUnknown
from gateway.domain.message import Complete, Message
from gateway.domain.topics.topology import SubscriptionProperties, TopicProperties
from tests.extensions.redrive.page_steps import (
    NOTE,
    bury,
    dead,
    figures,
    look,
    tick,
    try_and_move,
)
from tests.frontends.admin import page_states
from tests.frontends.admin.page_actions import (
    PHONE,
    RATES,
    WIDE,
    chromium,
    click,
    draw,
    open_page,
    text_of,
    type_into,
)
from tests.frontends.admin.page_site import Site, open_site
from tests.frontends.rest_client import KEY, POLICIES
from tests.harness.axe import audit
from tests.harness.chromium import Browser

__all__ = ["chromium"]

pytestmark = [pytest.mark.slow, pytest.mark.live]

QUEUE: Final = EntityPath("orders")
NEWS: Final = EntityPath("news")
HOSTILE: Final = "<img src=x onerror=alert(1)>"


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site(page_states.healthy) as one:
        yield one


def filled(site: Site, *messages: Message) -> None:
    async def fill(broker: Any) -> None:
        await broker.create_queue(QUEUE, QueueProperties())
        await bury(broker, QUEUE, messages)

    site.run(fill)


def received(site: Site) -> list[Message]:
    """The messages of the queue, which has them no longer."""

    async def receive(broker: Any) -> list[Message]:
        found = []
        async with broker.open_receiver(QUEUE) as receiver:
            while some := await receiver.receive_available(100):
                for delivery in some:
                    await receiver.settle(delivery, Complete())
                    found.append(delivery.message)
        return found

    return site.run(receive)


def left(site: Site, queue: EntityPath = QUEUE) -> int | None:
    async def count(broker: Any) -> int | None:
        found: int | None = (await broker.inspect(queue)).dead_lettered
        return found

    return site.run(count)


def test_dead_letters_are_listed_seen_chosen_tried_edited_and_moved(
    chromium: Browser, site: Site
) -> None:
    filled(site, dead(1), dead(2), dead(3, body=HOSTILE.encode()), dead(4, message_id=HOSTILE))
    open_page(chromium, site)
    click(chromium, "#queue-letters summary")
    click(chromium, "#list")
    chromium.until("document.querySelectorAll('#listed-rows tr').length === 1")
    listed = text_of(chromium, "listed-rows")
    namespace = chromium.evaluate("document.getElementById('look-namespace').value")
    complaints = audit(chromium)
    click(chromium, "#listed-rows button")
    chromium.until("document.querySelectorAll('#look-rows tr').length === 4")
    shown = text_of(chromium, "looked")
    note = text_of(chromium, "look-note")
    tick(chromium, "order-1", "order-3")
    chosen = text_of(chromium, "chosen")
    type_into(chromium, "move-set", "price=7")
    type_into(chromium, "move-reason", "case 4711")
    click(chromium, "#try")
    tried = chromium.until(f"{NOTE}.includes('Nothing has changed') && {NOTE}")
    before = left(site)
    complaints += audit(chromium)
    chromium.evaluate("document.getElementById('queue-letters').scrollIntoView()")
    draw(chromium, "queue-letters")
    click(chromium, "#move")
    counted = figures(chromium)
    complaints += audit(chromium)
    moved = received(site)

    assert "orders\t4" in listed
    assert namespace == "north"
    assert note == "orders has 4 dead letters."
    assert "Unreadable\t2" in shown
    for text in (HOSTILE, '{"order": 1}', "PriceMissing"):
        assert text in shown
    assert chosen == "2 messages chosen."
    assert tried == "2 messages would be moved to orders, with price=7. Nothing has changed yet."
    assert (before, left(site)) == (4, 2)
    assert counted == ["2 of 2", "0", "0"]
    assert {(each.message_id, each.properties["price"]) for each in moved} == {
        ("order-1", "7"),
        ("order-3", "7"),
    }
    assert complaints == []
    assert chromium.complaints == []
    assert chromium.evaluate("document.images.length + document.scripts.length") == 1


def test_a_change_after_the_dry_run_needs_another_one(chromium: Browser, site: Site) -> None:
    filled(site, dead(1), dead(2), dead(3))
    open_page(chromium, site)
    look(chromium, "orders")
    click(chromium, "#try")
    chromium.until("!document.getElementById('move').disabled")
    type_into(chromium, "move-unset", "retries")
    changed = chromium.evaluate("document.getElementById('move').disabled")
    type_into(chromium, "look-reason", "PriceMissing")
    hidden = not chromium.evaluate("document.getElementById('looked').checkVisibility()")
    click(chromium, "#look")
    chromium.until("document.getElementById('looked').checkVisibility()")
    click(chromium, "#move-new-body")
    chromium.evaluate("document.getElementById('move-body').focus()")
    chromium.type("fixed")
    said = try_and_move(chromium)

    assert (changed, hidden) == (True, True)
    assert "1 message would be moved to orders, without retries, with the new body." in said
    assert figures(chromium) == ["1 of 1", "0", "0"]
    assert [each.body for each in received(site)] == [b"fixed"]
    assert left(site) == 2


def test_a_redrive_with_a_rate_shows_its_progress_and_stops(chromium: Browser, site: Site) -> None:
    filled(site, *map(dead, range(200)))
    open_page(chromium, site)
    look(chromium, "orders")
    type_into(chromium, "move-rate", "5")
    try_and_move(chromium)
    chromium.until("document.getElementById('move-progress').value > 0")
    complaints = audit(chromium)
    locked = chromium.evaluate("document.getElementById('look-queue').matches(':disabled')")
    click(chromium, "#stop")
    moved, not_moved, unknown = figures(chromium)
    note = chromium.evaluate(NOTE)
    count = int(moved.removesuffix(" of 200"))

    assert complaints == []
    assert locked
    assert 0 < count < 200
    assert (int(not_moved), unknown, note) == (200 - count, "0", "Stopped.")
    assert (left(site), len(received(site))) == (200 - count, count)


@attrs.define(eq=False)
class Doubtful:
    """A namespace that doesn't confirm one message, which it has."""

    inner: Any
    doubtful: str

    async def send(self, entity: EntityPath, messages: Sequence[Message]) -> None:
        await self.inner.send(entity, messages)
        if messages[0].message_id == self.doubtful:
            raise OutcomeUnknown("the connection broke")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_an_unknown_outcome_is_counted_apart_and_names_the_message(
    chromium: Browser, site: Site
) -> None:
    filled(site, dead(1), dead(2), dead(3))
    site.broker = Doubtful(site.broker, "order-2")
    open_page(chromium, site)
    look(chromium, "orders")
    try_and_move(chromium)
    counted = figures(chromium)
    note = chromium.evaluate(NOTE)

    assert counted == ["1 of 3", "1", "1"]
    assert "message order-2 is still a dead letter, and may have been moved too" in note


def test_dead_letters_of_a_subscription_go_to_its_topic(chromium: Browser, site: Site) -> None:
    async def fill(broker: Any) -> None:
        await broker.create_topic(NEWS, TopicProperties())
        await broker.create_subscription(NEWS, "all", SubscriptionProperties())
        await bury(broker, EntityPath("news/subscriptions/all"), [dead(1)])

    site.run(fill)
    open_page(chromium, site)
    look(chromium, "news/subscriptions/all")
    said = try_and_move(chromium)

    assert "1 message would be moved to news." in said
    assert figures(chromium) == ["1 of 1", "0", "0"]


def test_a_refusal_is_shown_where_it_was_asked_for(chromium: Browser, site: Site) -> None:
    filled(site, dead(1))
    open_page(chromium, site)
    click(chromium, "#queue-letters summary")
    type_into(chromium, "look-queue", "nowhere")
    click(chromium, "#look")
    missing = chromium.until("document.getElementById('look-error').textContent")
    type_into(chromium, "look-queue", "orders")
    click(chromium, "#look")
    chromium.until("document.getElementById('looked').checkVisibility()")
    type_into(chromium, "move-set", "no value")
    click(chromium, "#try")
    malformed = chromium.until("document.getElementById('move-error').textContent")

    assert "nowhere" in missing
    assert "NAME=VALUE expected" in malformed
    assert audit(chromium) == []
    assert left(site) == 1


def test_a_reader_looks_and_moves_nothing(chromium: Browser) -> None:
    with open_site(page_states.healthy, POLICIES) as site:
        filled(site, dead(1))
        chromium.show(site.url)
        chromium.resize(*WIDE)
        chromium.until("!document.getElementById('sign-in').hidden")
        chromium.type("Listen")
        chromium.press("Tab", 9)
        chromium.type(KEY)
        chromium.press("Enter", 13, "\r")
        chromium.until(RATES)
        look(chromium, "orders")
        offered = [
            chromium.evaluate(f"document.querySelector('{each}').checkVisibility()")
            for each in ("#look-rows input", "#move-form", "#stop")
        ]

        assert offered == [False, False, False]
        assert audit(chromium) == []


def test_dead_letters_are_moved_by_keyboard_in_the_dark_and_on_a_phone(
    chromium: Browser, site: Site
) -> None:
    filled(site, dead(1), dead(2))
    open_page(chromium, site)
    chromium.evaluate("document.querySelector('#queue-letters summary').focus()")
    chromium.press("Enter", 13, "\r")
    chromium.until("document.getElementById('look-queue').checkVisibility()")
    for _ in range(2):  # over the namespace
        chromium.press("Tab", 9)
    chromium.type("orders")
    chromium.press("Enter", 13, "\r")
    chromium.until("document.getElementById('looked').checkVisibility()")
    chromium.evaluate("document.getElementById('move-target').focus()")
    chromium.press("Enter", 13, "\r")
    chromium.until("!document.getElementById('move').disabled")
    chromium.prefer("dark")
    complaints = audit(chromium)
    chromium.resize(*PHONE)
    complaints += audit(chromium)
    wide = chromium.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    chromium.prefer("light")
    chromium.evaluate("document.getElementById('queue-letters').scrollIntoView()")
    draw(chromium, "phone-queue-letters")
    chromium.evaluate("document.getElementById('move').focus()")
    chromium.press("Enter", 13, "\r")

    assert figures(chromium) == ["2 of 2", "0", "0"]
    assert complaints == []
    assert not wide
