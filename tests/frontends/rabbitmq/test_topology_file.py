"""The memory of the primary's queues and exchanges is there after a restart of the gateway."""

import json

import pytest
import trio
from pamqp import commands

from gateway.domain.events.gateway import Doubtful
from gateway.frontends.rabbitmq.known_topology import Inequivalent, KnownTopology
from gateway.frontends.rabbitmq.topology_file import TopologyFile
from tests.harness.patience import PATIENCE
from tests.pairing.harness import Events

ORDERS = commands.Queue.Declare(
    queue="orders", durable=True, arguments={"x-max-length": 9, "x-queue-type": "quorum"}
)
EVENTS = commands.Exchange.Declare(exchange="events", exchange_type="topic", durable=True)
BIND = commands.Queue.Bind(queue="orders", exchange="events", routing_key="order.#")


def kept(path, known=None, observer=None):
    return TopologyFile(
        path=path / "rabbitmq.json",
        known=known or KnownTopology(),
        observer=observer or Events(),
        every=0.01,
    )


def read(path):
    """The memory of a process that starts now."""
    again = kept(path)
    again.restore()
    return again.known


def taught(*requests):
    known = KnownTopology()
    for each in requests:
        known.record("/", each)
    return known


async def restarted(path, known):
    """The memory of a process after one with that memory."""
    async with trio.open_nursery() as nursery:
        await nursery.start(kept(path, known).run)
        known.changes.notify()
        nursery.cancel_scope.cancel()
    return read(path)


@pytest.mark.parametrize("request_", [ORDERS, EVENTS, BIND], ids=lambda each: each.name)
async def test_a_request_that_was_known_is_known_after_a_restart(tmp_path, request_):
    known = await restarted(tmp_path, taught(ORDERS, EVENTS, BIND))

    assert known.answer("/", request_) is not None
    assert known.answer("other", request_) is None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"durable": False}, "'durable' .*: received 'false' but current is 'true'"),
        ({"auto_delete": True}, "'auto_delete' .*: received 'true' but current is 'false'"),
        ({"arguments": {"x-a": 5}}, "'x-a' .*: received the value '5' but current is none"),
    ],
)
async def test_another_argument_is_refused_by_its_name_after_a_restart(tmp_path, other, text):
    known = await restarted(tmp_path, taught(commands.Queue.Declare(queue="orders", durable=True)))

    with pytest.raises(Inequivalent, match=f"inequivalent arg {text}"):
        known.answer("/", commands.Queue.Declare(**{"queue": "orders", "durable": True, **other}))


async def test_an_exchange_that_was_only_published_to_is_known_after_a_restart(tmp_path):
    known = KnownTopology()
    known.record_exchange("/", "events")
    known = await restarted(tmp_path, known)

    assert known.has_exchange("/", "events")
    assert known.answer("/", EVENTS) is None  # nobody knows its arguments


async def test_an_exclusive_queue_is_one_after_a_restart(tmp_path):
    mine = commands.Queue.Declare(queue="mine", exclusive=True)
    known = await restarted(tmp_path, taught(mine))

    assert known.is_exclusive("/", "mine")


async def test_a_deleted_queue_is_unknown_after_a_restart(tmp_path):
    known = taught(ORDERS, EVENTS, commands.Queue.Delete(queue="orders"))
    known = await restarted(tmp_path, known)

    assert known.answer("/", ORDERS) is None


async def test_changes_are_written_while_the_process_runs(tmp_path):
    """So that a process that is killed leaves them."""
    known = KnownTopology()
    async with trio.open_nursery() as nursery:
        await nursery.start(kept(tmp_path, known).run)
        for request in (EVENTS, ORDERS):
            known.record("/", request)
            with trio.fail_after(PATIENCE):
                while read(tmp_path).answer("/", request) is None:  # noqa: ASYNC110 a service does
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


def test_a_repeated_declaration_is_no_change():
    known = taught(ORDERS, EVENTS, BIND)
    version = known.changes.version
    for each in (ORDERS, EVENTS, BIND, commands.Exchange.Declare(exchange="events", passive=True)):
        known.record("/", each)
    known.record_exchange("/", "events")

    assert known.changes.version == version


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"version": 2, "known": []}',
        b'{"version": 1, "known": [["/", "!"]]}',
        b'{"version": 1, "known": [["/", ""]]}',
        b'{"version": 1, "known": [["/", "AQAAAAAABAAAAAAzzg=="]]}',
    ],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path, content):
    (tmp_path / "rabbitmq.json").write_bytes(content)
    events = Events()
    kept(tmp_path, observer=events).restore()

    [event] = events.of(Doubtful)
    assert "rabbitmq.json: nothing is read of it" in event.text


async def test_a_file_that_cannot_be_written_is_told_once(tmp_path):
    (tmp_path / "rabbitmq.json").mkdir()
    known, events = KnownTopology(), Events()
    async with trio.open_nursery() as nursery:
        await nursery.start(kept(tmp_path, known, events).run)
        known.record("/", EVENTS)
        with trio.fail_after(PATIENCE):
            await events.first(Doubtful)
        nursery.cancel_scope.cancel()

    [event] = events.of(Doubtful)
    assert "queues and exchanges aren't kept" in event.text


async def test_the_file_has_no_credentials(tmp_path):
    await restarted(tmp_path, taught(ORDERS))
    content = json.loads((tmp_path / "rabbitmq.json").read_text())

    assert set(content) == {"version", "known"}
    assert (tmp_path / "rabbitmq.json").stat().st_mode & 0o777 == 0o600


async def test_any_name_is_known_after_a_restart(tmp_path):
    exchange, bound = commands.Exchange.Declare(), commands.Queue.Bind()
    exchange.exchange = bound.exchange = "Bücher: 100 %"  # pamqp checks only what is given to it
    unbound = commands.Queue.Unbind()
    unbound.exchange = bound.exchange
    known = await restarted(tmp_path, taught(exchange, bound))

    assert known.has_exchange("/", exchange.exchange)
    assert known.answer("/", bound) is not None
    known.record("/", unbound)
    assert known.answer("/", bound) is None


async def test_a_flush_returns_when_the_file_has_what_is_known(tmp_path):
    async with trio.open_nursery() as nursery:
        file = kept(tmp_path)
        await nursery.start(file.run)
        file.known.record("/", EVENTS)
        with trio.fail_after(PATIENCE):
            await file.flush()

        assert read(tmp_path).has_exchange("/", "events")
        nursery.cancel_scope.cancel()


async def test_a_flush_after_a_restart_returns_though_nothing_has_changed(tmp_path):
    file = kept(tmp_path, await restarted(tmp_path, taught(ORDERS)))
    async with trio.open_nursery() as nursery:
        await nursery.start(file.run)
        with trio.fail_after(PATIENCE):
            await file.flush()
        nursery.cancel_scope.cancel()


async def test_a_flush_does_not_wait_for_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "rabbitmq.json").mkdir()
    async with trio.open_nursery() as nursery:
        file = kept(tmp_path)
        await nursery.start(file.run)
        file.known.record("/", EVENTS)
        with trio.fail_after(PATIENCE):
            await file.flush()

        nursery.cancel_scope.cancel()
