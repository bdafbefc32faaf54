"""The operators' page in a real browser, as people see and use it."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs
import pytest

from gateway.domain.access import Refusal
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import EntityStateChanged
from gateway.domain.operators.control import Action
from gateway.domain.status.process import Status
from gateway.extensions.drill.section import DRILL
from gateway.extensions.redrive.order import Selection
from tests.frontends.admin import page_states
from tests.frontends.admin.page_actions import (
    PHONE,
    RATES,
    READ,
    TEXT,
    WIDE,
    chromium,
    click,
    draw,
    open_page,
    text_of,
    type_into,
)
from tests.frontends.admin.page_site import DEAD, Site, open_site
from tests.frontends.rest_client import KEY, POLICIES
from tests.harness.axe import audit
from tests.harness.chromium import Browser

__all__ = ["chromium"]

pytestmark = [pytest.mark.slow, pytest.mark.live]

LOST: Final = "document.getElementById('lost').textContent"


class Told:
    """The status that the site reports; a test replaces it."""

    def __init__(self, state: Callable[[], Status]) -> None:
        self.state = state

    def __call__(self) -> Status:
        return self.state()


@pytest.fixture
def told() -> Told:
    return Told(page_states.healthy)


@pytest.fixture
def site(told: Told) -> Iterator[Site]:
    with open_site(told) as one:
        one.history = lambda: page_states.history_of(told())
        yield one


SEEN: Final = {
    "healthy": [
        "All is well",
        "Sends go now:",
        "to the primary north",
        "none now; 3 since the start",
        "amqp 31",
        *("serve on gw-1 (process 41), this one", "syphon on gw-2 (process 42)", "ended"),
        "don't reach it: it may not read on the secondary",
    ],
    "failed-over": [
        *(
            "Needs attention",
            "hasn't been reached",
            "to the backlog on south",
            "bills/eu",
            "suspect",
        ),
        *("the connection was refused", "11,412 messages", "waiting", "1 min 3"),
        *("3,804", "in 7 s"),
    ],
    "many": ["64 entities", "queue-00, queue-01, queue-02 and 61 more", "221,280"],
    "elsewhere": [
        *("the primary can't be reached", "syphon on gw-2, seen 4 s ago"),
        "north hasn't been reached",
    ],
    "moved-elsewhere": [
        "moving",
        "90.0/s; empty in about 1 min 8 s",
        "syphon on gw-2 (process 42)",
    ],
    "held-back": ["held back", "by ann since 2026-11-28 21:55", "pinned", "the syphon is paused"],
    "draining": [
        *("moving", "204/s; empty in about 30 s", "3: 2 EntityNotFound, 1 TTLExpiredException"),
        *("5,292 messages", "redrive"),
    ],
    "stalled": ["stalled", "the queue is full", "840 messages", "31 min 40 s"],
    "busy": ["busy", "sends to 2 entities wait"],
    "hostile": [
        *(page_states.HOSTILE, "<script>alert(2)</script>"),
        f"syphon on {page_states.HOSTILE}, seen 4 s ago",
    ],
    "listener": ["Listeners", "3 of 8", "25.0/s", "orders", "4,217"],
    "agent": ["Processes of the agent", "3 of 4", "55.0/s", "812", "1 min 35 s"],
}


def started(state: Callable[[], Status], later: timedelta) -> Callable[[], Status]:
    """The state of another process, so that its rates are its own."""

    def found() -> Status:
        status = state()
        return attrs.evolve(status, started=status.started + later)

    return found


def test_in_each_state_the_page_says_so_accessibly(
    chromium: Browser, site: Site, told: Told
) -> None:
    open_page(chromium, site)
    for number, (name, texts) in enumerate(SEEN.items()):
        told.state = started(page_states.STATES[name], timedelta(seconds=number))
        for text in texts:
            chromium.until(f"{TEXT}.includes({json.dumps(text)})")
        draw(chromium, name)
        assert audit(chromium) == [], name

    assert chromium.complaints == []
    assert {url.partition(str(site.port))[0] for url in chromium.requests} == {"http://127.0.0.1:"}
    # Only the page's own script: no name has brought an image or another script.
    assert chromium.evaluate("document.images.length + document.scripts.length") == 1


def test_the_page_is_accessible_in_the_dark_and_on_a_phone(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.failed_over
    open_page(chromium, site)
    chromium.prefer("dark")
    draw(chromium, "dark")
    complaints = audit(chromium)
    chromium.resize(*PHONE)
    chromium.prefer("light")
    wide = chromium.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    row = "document.querySelector('#entity-rows tr')"
    cells = chromium.evaluate(
        f"[...{row}.querySelectorAll('td')].filter(each => each.checkVisibility()).map(each => ["
        "getComputedStyle(each, '::before').content, each.offsetLeft])"
    )
    wider = chromium.evaluate(f"{row}.scrollWidth > {row}.clientWidth")
    draw(chromium, "phone")
    chromium.evaluate("document.getElementById('entities').scrollIntoView()")
    draw(chromium, "phone-entities")
    chromium.evaluate("document.getElementById('processes').scrollIntoView()")
    draw(chromium, "phone-processes")

    assert complaints == []
    assert not wide
    assert not wider
    # A card: one cell below the other, each with the heading of its column, and the buttons.
    labels = ["state", "for", "diverted", "waiting", "next probe", "reason"]
    assert [each for each, _ in cells] == [*(f'"{each}"' for each in labels), "none"]
    assert len({left for _, left in cells}) == 1
    assert audit(chromium) == []


def test_entities_with_one_reason_and_empty_queues_are_one_row_each_until_asked_for(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.many
    site.history = page_states.history
    open_page(chromium, site)
    entities = "document.querySelectorAll('#entity-rows tr').length"
    queues = "document.querySelectorAll('#queue-rows tr').length"
    chromium.until(f"{entities} === 2 && {queues} === 1")
    shown = text_of(chromium, "queue-rows")
    chromium.evaluate("document.getElementById('history').scrollIntoView()")
    draw(chromium, "empty-queues")
    click(chromium, "#entity-rows button[aria-label^='Show each']")
    click(chromium, "#queue-rows button[aria-label^='Show each']")
    chromium.until(f"{entities} === 65 && {queues} === 3")
    click(chromium, "#fold")
    chromium.until(f"{entities} === 2")

    assert "3 queues, which are empty" in shown
    assert "Purge" not in shown
    assert audit(chromium) == []


@pytest.mark.parametrize(
    ("state", "tone"),
    [
        (page_states.healthy, "good"),
        (page_states.elsewhere, "warn"),
        (page_states.moved_elsewhere, "good"),
        (page_states.held_back, "warn"),
        (page_states.failed_over, "warn"),
        (page_states.stalled, "bad"),
    ],
)
def test_the_way_home_is_green_only_where_it_is_good(
    state: Callable[[], Status], tone: str, chromium: Browser, site: Site, told: Told
) -> None:
    told.state = state
    open_page(chromium, site)

    assert chromium.evaluate("document.querySelector('#summary .state').dataset.tone") == tone


def test_a_page_that_loses_its_gateway_says_so_at_once_and_recovers(
    chromium: Browser, site: Site
) -> None:
    open_page(chromium, site)
    site.stop()
    lost = chromium.until(LOST)
    stale = chromium.evaluate(
        "getComputedStyle(document.querySelector('#pair h2'), '::after').content"
    )
    way_home = chromium.evaluate(
        "getComputedStyle(document.querySelector('#summary .state')).backgroundColor"
    )
    complaints = audit(chromium)
    draw(chromium, "disconnected")
    site.start()
    chromium.until(f"!{LOST}")

    assert "lost its gateway, because it doesn't answer" in lost
    assert "All values below are those of" in lost
    assert "stale" in stale
    assert way_home == "rgba(0, 0, 0, 0)"  # no longer green
    assert complaints == []
    assert chromium.evaluate("document.getElementById('verdict').textContent") == "All is well"


def test_a_change_is_shown_as_soon_as_its_event_arrives(
    chromium: Browser, site: Site, told: Told
) -> None:
    open_page(chromium, site)
    told.state = page_states.failed_over
    site.report(
        EntityStateChanged(
            entity=EntityPath("orders"),
            before="suspect",
            after="secondary",
            reason="refused",
            cause="failed",
        )
    )
    chromium.until("!document.getElementById('entities').hidden")
    chromium.until(f"{TEXT}.includes('entity_state_changed')")

    assert "before suspect, after secondary, reason refused" in chromium.evaluate(TEXT)


def test_the_last_hour_is_drawn_and_what_is_unknown_is_a_gap(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.draining
    site.history = page_states.history
    open_page(chromium, site)
    chromium.until("!document.getElementById('history').hidden")
    click(chromium, "#queue-rows button[aria-label^='Show each']")
    curves = chromium.evaluate(
        "[...document.querySelectorAll('#curves svg')].map(svg =>"
        " [...svg.querySelectorAll('polyline')].map(line => line.points.length))"
    )
    words = chromium.evaluate("document.querySelector('#curves figcaption').textContent")
    queues = chromium.evaluate("document.getElementById('queue-rows').innerText")
    marks = chromium.evaluate(
        "[...document.querySelectorAll('#curves svg')].map(svg =>"
        " [...svg.querySelectorAll('text')].map(mark => mark.textContent))"
    )
    chromium.evaluate("document.getElementById('history').scrollIntoView()")
    draw(chromium, "history")

    # For five minutes the secondary didn't answer; an empty backlog has no age.
    assert curves == [[21, 30], [5, 24]]
    assert words == "Waiting messages in the last hour: at most 2,520, last 0"
    depth, age = marks
    assert depth[:4] == ["0", "1,000", "2,000", "3,000"]
    assert age[:4] == ["0 s", "15 min", "30 min", "45 min"]
    assert all(re.fullmatch(r"\d\d:\d\d", each) for each in depth[5:])
    assert depth[4] == "now"
    assert "north/x-servicebus-transfer/2" in queues
    assert audit(chromium) == []


def test_with_ten_thousand_troubled_entities_the_page_stays_small_and_filters(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.crowded
    site.control.entities = {f"tenant-{n:05}/orders": "secondary" for n in range(10_000)}
    open_page(chromium, site)
    rows = "document.querySelectorAll('#entity-rows tr').length"
    site.report(
        *(
            EntityStateChanged(
                entity=EntityPath(f"tenant-{number:05}/orders"),
                before="suspect",
                after="secondary",
                reason="refused",
                cause="failed",
            )
            for number in range(10_000)
        )
    )
    chromium.until("document.querySelectorAll('#event-rows tr').length === 100")
    folded = chromium.evaluate(rows)
    click(chromium, "#entity-rows button")
    shown = chromium.until(f"{rows} > 1 && {rows}")
    chromium.evaluate("document.getElementById('entity-filter').focus()")
    chromium.type("00042")
    filtered = chromium.until(f"{rows} === 1 && {TEXT}")
    chromium.evaluate("document.getElementById('entity-filter').select()")
    chromium.type("tenant-0777")
    unlisted = chromium.until(f"{rows} === 10 && {TEXT}")

    assert (folded, shown) == (1, 100)
    assert "10,000 secondary" in filtered
    assert "The filter shows 1." in filtered
    assert "tenant-07779/orders" in unlisted
    assert chromium.evaluate("document.querySelectorAll('*').length") < 3000


def test_a_failover_is_ordered_by_keyboard_with_its_consequence_reason_and_end(
    chromium: Browser, site: Site
) -> None:
    open_page(chromium, site)
    chromium.until("!document.getElementById('steering').hidden")
    chromium.evaluate("document.querySelector('[data-action=failover]').focus()")
    chromium.press("Enter", 13, "\r")
    chromium.until("document.getElementById('order').open")
    consequence = chromium.evaluate("document.getElementById('consequence').textContent")
    complaints = audit(chromium)
    draw(chromium, "failover")
    chromium.type("storage migration")
    chromium.evaluate("document.getElementById('end').value = '3600'")
    chromium.press("Enter", 13, "\r")
    chromium.until("!document.getElementById('order').open")
    notice = chromium.evaluate("document.getElementById('notice').textContent")
    [(order, operator)] = site.control.orders

    assert "New sends to all entities go to the backlog on south" in consequence
    assert complaints == []
    assert (order.action, order.targets, order.reason) == (
        Action.FAILOVER,
        ("*",),
        "storage migration",
    )
    assert order.until is not None
    assert abs(order.until - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    assert operator.name == "anonymous"
    assert notice == "Fail over: the order for all entities is in effect."


def test_an_order_for_an_unknown_entity_is_forced_only_after_its_refusal(
    chromium: Browser, site: Site
) -> None:
    site.control.entities = {"orders": "primary"}
    site.control.not_reached = ("serve on gw-2 (process 7): it may not read",)
    open_page(chromium, site)
    chromium.until("!document.getElementById('steering').hidden")
    chromium.evaluate("document.querySelector('[data-action=failover]').click()")
    chromium.until("document.getElementById('order').open")
    offered = chromium.evaluate("document.getElementById('force').checkVisibility()")
    type_into(chromium, "targets", "ordres")
    click(chromium, "#confirm")
    chromium.until("document.getElementById('order-error').textContent")
    refusal = text_of(chromium, "order-error")
    complaints = audit(chromium)
    click(chromium, "#force")
    click(chromium, "#confirm")
    chromium.until("!document.getElementById('order').open")
    notice = chromium.until("document.getElementById('notice').textContent")
    [(order, _)] = site.control.orders

    assert not offered
    assert notice.endswith(
        "Not reached, so order them, too: serve on gw-2 (process 7): it may not read."
    )
    assert "nobody knows 'ordres': did you mean orders?" in refusal
    assert complaints == []
    assert (order.targets, order.force) == (("ordres",), True)


def test_the_page_of_a_syphon_steers_the_syphon_alone(
    chromium: Browser, site: Site, told: Told
) -> None:
    site.control.has_pair = False
    told.state = page_states.draining
    open_page(chromium, site, READ)
    chromium.until(f"{TEXT}.includes('This process is a syphon: it accepts no sends.')")
    buttons = chromium.evaluate("document.getElementById('steering').innerText")

    assert "Pause the syphon" in buttons
    assert "Fail over" not in buttons
    assert chromium.evaluate("document.getElementById('redriving').hidden")
    assert audit(chromium) == []


def test_dead_letters_are_redriven_after_a_confirmation(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.draining
    open_page(chromium, site)
    chromium.until("!document.getElementById('redriving').hidden")
    chromium.evaluate("document.getElementById('redrive').click()")
    consequence = chromium.evaluate("document.getElementById('consequence').textContent")
    complaints = audit(chromium)
    chromium.evaluate("document.getElementById('confirm').click()")
    notice = chromium.until("document.getElementById('notice').textContent")

    assert "go back to the backlog" in consequence
    assert complaints == []
    assert site.redriving.runs == [Selection()]
    assert notice == "Redrive dead letters: 2 moved, 1 couldn't be moved: orders: missing."


def test_dead_letters_are_peeked_without_their_bodies_and_redriven_by_reason(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.draining
    site.redriving.survey_of = DEAD
    open_page(chromium, site)
    click(chromium, "#letters summary")
    chromium.until("document.querySelectorAll('#letter-samples tr').length === 1")
    shown = text_of(chromium, "letters")
    complaints = audit(chromium)
    draw(chromium, "dead-letters")
    click(chromium, "#letter-groups button:not([hidden])")
    consequence = text_of(chromium, "consequence")
    click(chromium, "#confirm")
    chromium.until("document.getElementById('notice').textContent")

    assert "3 messages, 1 of them listed, without their bodies." in shown
    for text in ("<script>alert(4)</script>", "69 KiB", "5 h", "(not readable)"):
        assert text in shown
    assert "with the reason EntityNotFound" in consequence
    assert complaints == []
    assert site.redriving.runs == [
        Selection(reasons=("EntityNotFound",), entities=("<img src=x onerror=alert(3)>",))
    ]
    assert chromium.evaluate("document.images.length + document.scripts.length") == 1


def test_a_troubled_entity_is_probed_now(chromium: Browser, site: Site, told: Told) -> None:
    told.state = page_states.failed_over
    open_page(chromium, site)
    click(chromium, "#waiting summary")
    waiting = text_of(chromium, "waiting")
    assert "11,379 messages for 3 entities, as this process counts them." in waiting
    assert "bills/eu\t3,793" in waiting
    told.state = page_states.stalled
    chromium.until("document.getElementById('waiting').innerText.includes('(unknown)')")
    told.state = page_states.failed_over
    click(chromium, "#entity-rows button:not([hidden])")
    notice = chromium.until(
        "document.getElementById('entity-notice').textContent.includes('answered')"
        " && document.getElementById('entity-notice').textContent"
    )

    [order] = site.control.probes
    assert notice == f"{order.targets[0]} answered in 0.012 s; secondary → half-open."


def test_a_purge_needs_the_name_typed_and_names_what_is_lost(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.draining
    open_page(chromium, site)
    click(chromium, "#queue-rows button")
    chromium.until("document.getElementById('consequence').textContent.includes('7 messages')")
    consequence = text_of(chromium, "consequence")
    complaints = audit(chromium)
    draw(chromium, "purge")
    refused = chromium.evaluate("document.getElementById('confirm').disabled")
    queue = site.purging.orders[0].queue
    type_into(chromium, "typed", queue)
    allowed = not chromium.evaluate("document.getElementById('confirm').disabled")
    chromium.press("Enter", 13, "\r")
    notice = chromium.until("document.getElementById('notice').textContent")

    assert f"7 messages of {queue} are deleted for good" in consequence
    assert complaints == []
    assert (refused, allowed) == (True, True)
    counted, done = site.purging.orders
    assert (counted.executes, done.confirm, done.messages) == (False, queue, 7)
    assert notice == "Purge: 7 messages deleted."


def test_a_reload_shows_what_was_applied_and_what_needs_a_restart(
    chromium: Browser, site: Site
) -> None:
    open_page(chromium, site)
    click(chromium, "button[data-action=reload]")
    consequence = text_of(chromium, "consequence")
    click(chromium, "#confirm")
    chromium.until("document.querySelector('#order-result li') !== null")
    shown = text_of(chromium, "order-result")
    complaints = audit(chromium)
    draw(chromium, "reload")
    click(chromium, "#cancel")

    assert "If anything is wrong, nothing is changed." in consequence
    assert "the access policies are ops" in shown
    assert "These sections need a restart: endpoints." in shown
    assert complaints == []


def test_a_drain_names_its_consequence_and_shows_its_report(chromium: Browser, site: Site) -> None:
    open_page(chromium, site)
    click(chromium, "button[data-action=drain]")
    consequence = text_of(chromium, "consequence")
    chromium.type("upgrade")
    chromium.press("Enter", 13, "\r")
    chromium.until("document.getElementById('order-result').textContent.startsWith('Drained')")
    shown = text_of(chromium, "order-result")
    chromium.press("Escape", 27)

    assert "accepts nothing more" in consequence
    assert shown == "Drained in 0.3 s: 12 connections finished, 0 cut off. The process ends now."
    [order] = site.processing.orders
    assert (order.reason, order.wait) == ("upgrade", True)


def test_a_drill_is_begun_followed_and_judged(chromium: Browser, site: Site, told: Told) -> None:
    def rehearsed() -> Status:
        state = page_states.failed_over() if site.drilling.drill else page_states.healthy()
        return attrs.evolve(state, sections={**state.sections, DRILL: site.drilling.drill})

    told.state = rehearsed
    open_page(chromium, site)
    click(chromium, "button[data-action=drill]")
    chromium.until("document.getElementById('order').open")
    chromium.evaluate("document.getElementById('fault').value = 'hang'")
    type_into(chromium, "seconds", "600")
    type_into(chromium, "typed", "south")
    refused = chromium.evaluate("document.getElementById('confirm').disabled")
    type_into(chromium, "typed", "north")
    consequence = text_of(chromium, "consequence")
    complaints = audit(chromium)
    draw(chromium, "drill")
    click(chromium, "#confirm")
    chromium.until("document.getElementById('drill-state').textContent.includes('under way')")
    going = text_of(chromium, "drill")
    complaints += audit(chromium)
    click(chromium, "#end-drill")
    verdict = chromium.until(
        "document.getElementById('drill-state').textContent.includes('Verdict')"
        " && document.getElementById('drill').innerText"
    )

    [order] = site.drilling.orders
    assert (order.namespace, order.targets, order.fault.value, order.seconds) == (
        "north",
        ("*",),
        "hang",
        600.0,
    )
    assert refused
    assert "north itself isn't touched" in consequence
    assert "For 600 s this gateway behaves as if north had an outage" in consequence
    assert complaints == []
    assert "north, hang, by anonymous. It ends in " in going
    assert "no send failed, all entities are back, and the backlog is empty" in verdict


def test_a_reader_sees_no_button_that_steers(chromium: Browser, told: Told) -> None:
    told.state = page_states.draining
    with open_site(told, POLICIES) as site:
        site.history = page_states.history
        site.redriving.survey_of = DEAD
        chromium.show(site.url)
        chromium.resize(*WIDE)
        chromium.until("!document.getElementById('sign-in').hidden")
        chromium.type("Listen")
        chromium.press("Tab", 9)
        chromium.type(KEY)
        chromium.press("Enter", 13, "\r")
        chromium.until(RATES)
        click(chromium, "#letters summary")
        chromium.until("document.querySelectorAll('#letter-samples tr').length === 1")
        chromium.until("!document.getElementById('history').hidden")
        told.state = page_states.failed_over
        chromium.until("!document.getElementById('entities').hidden")
        buttons = chromium.evaluate(
            "[...document.querySelectorAll('button')].filter(each => each.checkVisibility())"
            ".map(each => each.innerText)"
        )

        assert buttons == ["Show each"]
        assert audit(chromium) == []


def test_escape_leaves_the_dialog_and_nothing_is_ordered(
    chromium: Browser, site: Site, told: Told
) -> None:
    told.state = page_states.hostile
    open_page(chromium, site)
    button = "document.querySelector('#entity-rows button[aria-label^=Fail]')"
    chromium.until(f"{button} !== null")
    chromium.evaluate(f"{button}.click()")
    chromium.until("document.getElementById('order').open")
    named = chromium.evaluate("document.getElementById('targets').value")
    chromium.press("Escape", 27)
    chromium.until("!document.getElementById('order').open")

    assert named == page_states.HOSTILE
    assert site.control.orders == []


def test_a_key_is_asked_for_and_sent_as_a_header_only(chromium: Browser) -> None:
    with open_site(page_states.healthy, POLICIES) as site:
        chromium.show(site.url)
        chromium.resize(*WIDE)
        chromium.until("!document.getElementById('sign-in').hidden")
        complaints = audit(chromium)
        unasked = [*site.refused]
        chromium.type("Manage")
        chromium.press("Tab", 9)
        chromium.type("a wrong key")
        chromium.press("Enter", 13, "\r")
        error = chromium.until("document.getElementById('sign-in-error').textContent")
        chromium.evaluate("document.getElementById('key').focus()")
        chromium.type(KEY)
        chromium.press("Enter", 13, "\r")
        chromium.until(RATES)
        hidden = chromium.evaluate("document.getElementById('sign-in').hidden")
        asked = [each for each in site.requests if each.path == "/status"]

        assert complaints == []
        assert (unasked, site.refused) == ([], [Refusal.WRONG_KEY])
        assert error
        assert hidden
        assert any((each.headers.get("Authorization") or "").startswith("Basic ") for each in asked)
        assert not any(KEY in each.target or "Manage" in each.target for each in site.requests)
