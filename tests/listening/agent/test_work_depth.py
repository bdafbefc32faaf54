"""An admin endpoint reports the depth of queues, over real sockets; the system reports its load."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.app.operations.gateway_keys import GatewayKeys
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.access import AccessPolicy, Right
from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import BrokerError, NotAuthorized, Unavailable
from gateway.domain.message import Message
from gateway.frontends.admin.frontend import AdminFrontend
from gateway.frontends.auth import Authorizer
from gateway.listening.agent.process_pool import ListenerLoad
from gateway.listening.agent.work_depth import ProcessorLoad, ScaleReader, WorkWatch
from gateway.net.http.server import HttpServer
from gateway.store.local.memory import MemoryBroker
from gateway.wire.http.messages import Request, Response
from gateway.wire.pairgate.scale import EntityFigures
from tests.pairing.harness import Events

URGENT, BULK = EntityPath("urgent"), EntityPath("bulk")
KEY = "a key of sixteen"
SENT = datetime(2026, 1, 1, tzinfo=UTC)


def config_for(port: int, key: str = KEY) -> Config:
    text = f"""
[namespaces.here]
url = "memory:"
[[access]]
name = "listener"
key = {{ env = "KEY" }}
rights = ["Listen"]
[agent]
gateway = "http://127.0.0.1:{port}"
"""
    return parse(text, source="x", folder=Path("/nowhere"), environ={"KEY": key}).config


def reader_of(config: Config) -> ScaleReader:
    return ScaleReader(keys=GatewayKeys(config=config, observer=Events()))


@pytest.fixture
async def broker() -> MemoryBroker:
    broker = MemoryBroker(lambda: SENT, random.Random(1))
    await broker.create_queue(URGENT, QueueProperties())
    await broker.create_queue(BULK, QueueProperties())
    return broker


@pytest.fixture
async def port(broker: MemoryBroker, nursery: trio.Nursery) -> int:
    """The port of an admin endpoint whose clock is half a minute after all messages were sent."""
    policy = AccessPolicy(name="listener", keys=(KEY,), rights=frozenset({Right.LISTEN}))

    def now() -> datetime:
        return SENT + timedelta(seconds=30)

    frontend = AdminFrontend(
        broker=broker,
        authorizer=Authorizer([policy], wall_clock=now),
        wall_clock=now,
    )
    server = HttpServer(
        handler=frontend.handle, error_body=frontend.refuse, wall_clock=lambda: SENT
    )
    serve = partial(trio.serve_tcp, server.serve_connection, 0, host="127.0.0.1")
    (listener, *_) = await nursery.start(serve)
    bound: int = listener.socket.getsockname()[1]
    return bound


async def test_the_work_of_several_queues_is_all_they_have_and_the_oldest_of_it(
    broker: MemoryBroker, port: int
) -> None:
    await broker.send(URGENT, [Message(body=b"1")])
    await broker.send(BULK, [Message(body=b"2"), Message(body=b"3")])

    work = await reader_of(config_for(port)).poll([URGENT, BULK])

    assert work == ListenerLoad(depth=3, oldest_age=30.0)


async def test_a_queue_that_gives_nothing_has_no_work(broker: MemoryBroker, port: int) -> None:
    await broker.send(URGENT, [Message(body=b"1")])
    await broker.update_queue(URGENT, QueueProperties(status=EntityStatus.RECEIVE_DISABLED))

    work = await reader_of(config_for(port)).poll([URGENT])

    assert work == ListenerLoad(depth=0, oldest_age=0.0)


async def test_a_wrong_key_is_an_error_and_not_an_empty_queue(port: int) -> None:
    with pytest.raises(NotAuthorized):
        await reader_of(config_for(port, key="another, also long")).poll([URGENT])


async def test_if_no_queue_is_there_it_is_an_error(port: int) -> None:
    with pytest.raises(BrokerError):
        await reader_of(config_for(port)).poll([EntityPath("nowhere"), EntityPath("no")])


async def test_a_missing_queue_among_others_is_empty(broker: MemoryBroker, port: int) -> None:
    await broker.send(BULK, [Message()])

    work = await reader_of(config_for(port)).poll([BULK, EntityPath("nowhere")])

    assert work == ListenerLoad(depth=1, oldest_age=30.0)


async def test_a_thousand_queues_are_asked_about_at_once(broker: MemoryBroker, port: int) -> None:
    queues = [EntityPath(f"a-queue-with-a-rather-long-name-{number}") for number in range(1000)]
    for queue in queues:
        await broker.create_queue(queue, QueueProperties())
    await broker.send(queues[500], [Message()] * 3)
    before = broker.meter.usage().total

    with trio.fail_after(60):
        work = await reader_of(config_for(port)).poll(queues)

    assert work == ListenerLoad(depth=3, oldest_age=30.0)
    assert broker.meter.usage().total - before < 40  # lists, and a look at the one with messages


async def test_a_gateway_that_knows_single_queues_only_is_asked_about_each(
    broker: MemoryBroker, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.send(URGENT, [Message()])

    async def unknown(self: AdminFrontend, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        return self.refuse(404, "/scale not found")

    monkeypatch.setattr(AdminFrontend, "_scale_all", unknown)

    work = await reader_of(config_for(port)).poll([URGENT, BULK])

    assert work == ListenerLoad(depth=1, oldest_age=30.0)


@attrs.define(eq=False)
class Told:
    """A reader that notes which queues it was asked about."""

    depths: dict[str, int] = attrs.field(factory=dict)
    asked: list[list[str]] = attrs.field(factory=list)
    meanwhile: Callable[[], None] = lambda: None  # happens during a question

    async def figures(self, queues: Sequence[EntityPath]) -> Sequence[EntityFigures]:
        await trio.lowlevel.checkpoint()
        self.asked.append([queue.name for queue in queues])
        found = [
            EntityFigures(
                entity=queue.name, status="Active", depth=self.depths.get(queue.key, 0), age=0.0
            )
            for queue in queues
        ]
        self.meanwhile()
        return found


def watch_of(told: Told) -> WorkWatch:
    return WorkWatch(reader=told, queues=[URGENT, BULK], idle_interval=60.0)  # type: ignore[arg-type]


async def test_only_queues_with_messages_are_asked_about_at_each_look(
    autojump_clock: MockClock,
) -> None:
    told = Told(depths={"urgent": 2})
    watch = watch_of(told)
    watch.set_announced(is_told=True)
    works = []
    for _ in range(13):
        works.append(await watch.poll())
        await trio.sleep(5.0)

    assert told.asked[0] == ["urgent", "bulk"]
    assert told.asked[1:12] == [["urgent"]] * 11
    assert told.asked[12] == ["urgent", "bulk"]  # a minute later
    assert works == [ListenerLoad(depth=2, oldest_age=0.0)] * 13


async def test_an_announced_queue_is_asked_about_at_the_next_look(
    autojump_clock: MockClock,
) -> None:
    told = Told()
    watch = watch_of(told)
    watch.set_announced(is_told=True)
    await watch.poll()
    await watch.poll()
    told.depths["bulk"] = 7
    watch.announce(BULK)

    assert await watch.poll() == ListenerLoad(depth=7, oldest_age=0.0)
    assert told.asked == [["urgent", "bulk"], ["bulk"]]


async def test_a_queue_with_messages_counts_though_further_ones_are_announced_at_each_look(
    autojump_clock: MockClock,
) -> None:
    told = Told(depths={"urgent": 90, "bulk": 3})
    watch = watch_of(told)
    watch.set_announced(is_told=True)
    told.meanwhile = lambda: watch.announce(URGENT)

    works = [await watch.poll() for _ in range(3)]

    assert works == [ListenerLoad(depth=93, oldest_age=0.0)] * 3


@pytest.mark.parametrize("told_again", [False, True])
async def test_a_queue_that_is_announced_during_a_question_is_asked_about_again(
    autojump_clock: MockClock, told_again: bool
) -> None:
    told = Told()
    watch = watch_of(told)
    watch.set_announced(is_told=True)
    told.meanwhile = (
        partial(watch.set_announced, is_told=True) if told_again else lambda: watch.announce(BULK)
    )
    await watch.poll()
    told.meanwhile = lambda: None
    await watch.poll()
    await watch.poll()

    assert told.asked == [["urgent", "bulk"], ["urgent", "bulk"] if told_again else ["bulk"]]


async def test_while_nothing_is_announced_all_queues_are_asked_about(
    autojump_clock: MockClock,
) -> None:
    told = Told()
    watch = watch_of(told)
    await watch.poll()
    await watch.poll()

    assert told.asked == [["urgent", "bulk"]] * 2


async def test_a_gateway_that_is_away_is_an_error_and_found_again(
    broker: MemoryBroker, port: int
) -> None:
    (closed,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    reader = reader_of(config_for(closed.socket.getsockname()[1]))
    await closed.aclose()
    with pytest.raises(Unavailable):
        await reader.poll([URGENT])

    reader.keys.config = config_for(port)
    await reader.poll([URGENT])
    with trio.fail_after(30):
        assert (await reader.endpoint()).place.port == port


def test_the_load_is_the_share_of_time_in_which_processors_worked(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    load = ProcessorLoad(stat)
    stat.write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n")
    first = load()
    stat.write_text("cpu  160 0 115 720 105 0 0 0 90 0\ncpu0 1 2 3\n")

    assert first is None
    assert load() == pytest.approx(0.75)


def test_a_system_that_does_not_tell_has_no_load(tmp_path: Path) -> None:
    assert ProcessorLoad(tmp_path / "stat")() is None
