"""Server-sent events: resumed, missed and never read, without a socket."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio
from trio.testing import MockClock

from gateway.domain.access import MAX_CLOCK_SKEW
from gateway.domain.entity import EntityPath
from gateway.domain.events.gateway import Doubtful, Syphoned, SyphonFailed
from gateway.domain.status.process import Status
from gateway.frontends.admin.events import BETWEEN, EventsFrontend
from gateway.frontends.admin.figures import FiguresFrontend
from gateway.frontends.auth import Authorizer
from gateway.telemetry.recent_events import RecentEvents
from gateway.telemetry.watch import GatewayWatch
from gateway.wire.http.event_stream import COMMENT, EventParser, ServerEvent
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus.sas import sign_sas
from tests.frontends.rest_client import KEY, POLICIES, wall_clock


class Silent:
    def report(self, event: object) -> None:
        """Nothing."""


@pytest.fixture
async def watch() -> GatewayWatch:
    return GatewayWatch(Silent(), wall_clock)


async def never() -> Status:
    raise AssertionError("nobody asks for the status")


def frontend_of(recent: RecentEvents, *, open_to_all: bool = True) -> FiguresFrontend:
    authorizer = Authorizer(
        () if open_to_all else POLICIES, wall_clock=wall_clock, accepts_well_known_key=open_to_all
    )
    return FiguresFrontend(
        authorizer=authorizer,
        read=never,
        exposition=lambda status: b"",
        events=EventsFrontend(authorizer, recent),
    )


async def ask(recent: RecentEvents, target: str, last: str = "") -> Response:
    headers = Headers.of({"Last-Event-ID": last} if last else {})
    return await frontend_of(recent).handle(Request(method="GET", target=target, headers=headers))


async def read(recent: RecentEvents, target: str = "/events?follow=false", last: str = "") -> str:
    """The texts of the events in the answer, one a line; a gap as the number that is missing."""
    answer = await ask(recent, target, last)
    assert answer.status == 200, answer.body
    return "\n".join(map(told, EventParser().feed(answer.body)))


def told(event: ServerEvent) -> str:
    fields = json.loads(event.data)
    assert fields["event"] == event.name
    return f"gap of {fields['missed']}" if event.name == "gap" else str(fields["text"])


def happen(watch: GatewayWatch, *texts: str) -> None:
    for text in texts:
        watch.report(Doubtful(text=text))


async def test_past_events_come_in_their_order_with_the_fields_of_the_log(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    happen(watch, "one", "two")
    answer = await ask(watch.recent, "/events?follow=false")
    [first, second] = EventParser().feed(answer.body)

    assert answer.headers.get("Content-Type") == "text/event-stream"
    assert json.loads(first.data) == {
        "timestamp": wall_clock().isoformat(timespec="milliseconds"),
        "level": "warning",
        "event": "doubtful",
        "text": "one",
    }
    assert [first.id, second.id] == [f"{watch.recent.run}-1", f"{watch.recent.run}-2"]


async def test_events_of_single_messages_arent_kept_and_repeated_ones_are_counted(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    queue = EntityPath("east/x-servicebus-transfer/0")
    watch.report(Syphoned(entity=EntityPath("orders"), queue=queue, messages=1))
    for _ in range(5):
        watch.report(SyphonFailed(queue=queue, reason="refused"))
    await trio.sleep(11)
    happen(watch, "later")

    names = [(name, json.loads(data).get("repeated")) for _, name, data in watch.recent.after(0, 9)]
    assert names == [("syphon_failed", None), ("syphon_failed", 4), ("doubtful", None)]


async def test_the_last_so_many_can_be_asked_for(watch: GatewayWatch) -> None:
    happen(watch, "one", "two", "three")

    assert await read(watch.recent, "/events?follow=false&recent=2") == "two\nthree"
    assert await read(watch.recent, "/events?follow=false&recent=0") == ""
    assert await read(watch.recent, "/events?follow=false&recent=99") == "one\ntwo\nthree"


async def test_a_stream_is_resumed_after_the_last_event(watch: GatewayWatch) -> None:
    happen(watch, "one", "two", "three")

    assert await read(watch.recent, last=f"{watch.recent.run}-1") == "two\nthree"
    assert await read(watch.recent, last=f"{watch.recent.run}-3") == ""


async def test_a_reader_that_comes_back_too_late_is_told_how_many_are_missing() -> None:
    recent = RecentEvents(wall_clock, most=3)
    for number in range(10):
        recent.record(Doubtful(text=str(number)))

    assert await read(recent, last=f"{recent.run}-2") == "gap of 5\n7\n8\n9"
    assert await read(recent, last=f"{recent.run}-7") == "7\n8\n9"


@pytest.mark.parametrize("last", ["abc-1", "-", "x", "0-0", "{run}-x", "{run}-99", "{run}-1-1"])
async def test_a_position_in_another_process_is_a_gap_of_unknown_size(
    watch: GatewayWatch, last: str
) -> None:
    happen(watch, "one")

    assert await read(watch.recent, last=last.format(run=watch.recent.run)) == "gap of None\none"


async def test_a_position_of_too_many_digits_is_unknown(watch: GatewayWatch) -> None:
    happen(watch, "a")
    last = f"{watch.recent.run}-{'0' * 18}{'9' * 5000}"

    assert await read(watch.recent, last=last) == "gap of None\na"


async def next_of(parts: AsyncGenerator[bytes, None]) -> bytes:
    return await parts.__anext__()


async def test_each_event_comes_as_it_happens_and_silence_is_kept_alive(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    answer = await ask(watch.recent, "/events")
    assert answer.parts is not None
    async with aclosing(answer.parts) as parts:
        assert await next_of(parts) == COMMENT
        began = trio.current_time()
        assert await next_of(parts) == COMMENT
        silent = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_later, watch)
            [event] = EventParser().feed(await next_of(parts))

    assert silent == pytest.approx(15.0)
    assert told(event) == "new"


async def test_the_first_event_comes_at_once_and_those_soon_after_it_together(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    answer = await ask(watch.recent, "/events")
    assert answer.parts is not None
    async with aclosing(answer.parts) as parts:
        await next_of(parts)
        began = trio.current_time()
        happen(watch, "1")
        first = EventParser().feed(await next_of(parts))
        at_once = trio.current_time() - began
        happen(watch, "2", "3")
        others = EventParser().feed(await next_of(parts))
        together = trio.current_time() - began

    assert [told(event) for event in first] == ["1"]
    assert [told(event) for event in others] == ["2", "3"]
    assert (at_once, together) == (0.0, pytest.approx(BETWEEN))


async def test_kept_events_come_without_pauses(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    happen(watch, *map(str, range(350)))
    answer = await ask(watch.recent, "/events")
    assert answer.parts is not None
    async with aclosing(answer.parts) as parts:
        await next_of(parts)
        began = trio.current_time()
        found = [len(EventParser().feed(await next_of(parts))) for _ in range(4)]

    assert found == [100, 100, 100, 50]
    assert trio.current_time() == began


async def test_an_event_is_written_as_json_once_for_all_readers(watch: GatewayWatch) -> None:
    await trio.lowlevel.checkpoint()
    happen(watch, "one")
    [(_, _, first)], [(_, _, again)] = (watch.recent.after(0, 9) for _ in range(2))

    assert first is again


async def _later(watch: GatewayWatch) -> None:
    await trio.sleep(1)
    happen(watch, "new")


async def test_a_slow_reader_costs_no_memory_and_learns_what_it_missed() -> None:
    recent = RecentEvents(wall_clock, most=100)
    answer = await ask(recent, "/events")
    assert answer.parts is not None
    async with aclosing(answer.parts) as parts:
        await next_of(parts)
        for number in range(100_000):
            recent.record(Doubtful(text=str(number)))
        found = EventParser().feed(await next_of(parts))

    assert list(map(told, found)) == [
        "gap of 99900",
        *(str(number) for number in range(99_900, 100_000)),
    ]


async def test_a_reader_that_has_lost_its_right_gets_no_more_events(
    watch: GatewayWatch, autojump_clock: MockClock
) -> None:
    frontend = frontend_of(watch.recent, open_to_all=False)
    token = sign_sas("http://localhost/", "Listen", KEY, int(wall_clock().timestamp()) + 60)
    request = Request(method="GET", target="/events", headers=Headers.of({"Authorization": token}))
    revoked, expired = [await frontend.handle(request) for _ in range(2)]
    assert revoked.parts is not None
    assert expired.parts is not None
    for parts in (revoked.parts, expired.parts):
        assert await next_of(parts) == COMMENT

    frontend.authorizer.replace([each for each in POLICIES if each.name != "Listen"])
    happen(watch, "secret")
    with trio.fail_after(1):
        assert [part async for part in revoked.parts] == []

    frontend.authorizer.replace(POLICIES)
    with trio.fail_after(1000):
        async for _ in expired.parts:
            """The event, and signs of life."""
    assert trio.current_time() == pytest.approx(60 + MAX_CLOCK_SKEW.total_seconds(), abs=15.1)


@pytest.mark.parametrize("query", ["recent=x", "recent=-1", "follow=yes"])
async def test_a_wrong_query_is_refused(watch: GatewayWatch, query: str) -> None:
    assert (await ask(watch.recent, f"/events?{query}")).status == 400


async def test_events_are_told_to_none_but_who_may_read_the_status(watch: GatewayWatch) -> None:
    frontend = frontend_of(watch.recent, open_to_all=False)

    answer = await frontend.handle(Request(method="GET", target="/events"))

    assert answer.status == 401
