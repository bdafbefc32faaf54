"""Exchanges, bindings, and what queues do with messages by their arguments."""

from typing import Any

import pytest
import trio
from pamqp import commands

from gateway.frontends.rabbitmq.known_topology import ALTERNATE, KnownTopology
from gateway.wire.rabbitmq.frames import with_any_name
from tests.frontends.rabbitmq.peers import Peer, log_in
from tests.frontends.rabbitmq_broker.site import GUEST, Client, site


async def bound(client: Client, kind: str, *keys: str, **arguments: Any) -> None:
    """A queue for each key, named by its number, bound to the exchange `events`."""
    request = commands.Exchange.Declare(exchange="events", exchange_type=kind)
    await client.asks(request, commands.Exchange.DeclareOk)
    for number, key in enumerate(keys):
        await client.declares(f"q{number}")
        await bind(client, f"q{number}", "events", key, **arguments)


async def bind(client: Client, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
    names = {name.replace("_", "-"): each for name, each in arguments.items()}
    request = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=names)
    await client.asks(request, commands.Queue.BindOk)


async def reached(client: Client, *queues: str) -> list[str]:
    return [queue for queue in queues if await client.gets(queue) is not None]


@pytest.mark.parametrize(
    ("kind", "keys", "key", "expected"),
    [
        ("direct", ("a", "b"), "a", ["q0"]),
        ("fanout", ("a", "b"), "other", ["q0", "q1"]),
        ("topic", ("a.*.c", "#", "a.#", "*", "b.#"), "a.b.c", ["q0", "q1", "q2"]),
        ("topic", ("#.c", "a.*", "a.b.#.c", "#.#"), "a.b.c", ["q0", "q2", "q3"]),
    ],
)
async def test_an_exchange_routes_by_its_kind(
    autojump_clock, kind: str, keys: tuple[str, ...], key: str, expected: list[str]
) -> None:
    async with site() as here:
        client = await here.connect()
        await bound(client, kind, *keys)
        await client.publish(b"x", key, "events")

        queues = [f"q{number}" for number in range(len(keys))]
        assert await reached(client, *queues) == expected


@pytest.mark.parametrize(
    ("how", "headers", "is_reached"),
    [
        ("all", {"a": 1, "b": 2, "c": 3}, True),
        ("all", {"a": 1}, False),
        ("any", {"a": 1}, True),
        ("any", {"a": 2}, False),
    ],
)
async def test_a_headers_exchange_compares_headers(
    autojump_clock, how: str, headers: dict[str, int], is_reached: bool
) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("q")
        await bind(client, "q", "amq.headers", x_match=how, a=1, b=2)
        await client.publish(b"x", "", "amq.headers", headers=headers)

        assert await reached(client, "q") == ["q"] * is_reached


async def test_a_queue_gets_one_copy_by_several_ways(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await bound(client, "topic", "a")
        await bind(client, "q0", "events", "#")
        second = commands.Exchange.Declare(exchange="second", exchange_type="fanout")
        await client.asks(second, commands.Exchange.DeclareOk)
        onward = commands.Exchange.Bind(destination="second", source="events", routing_key="#")
        await client.asks(onward, commands.Exchange.BindOk)
        await bind(client, "q0", "second")
        await client.publish(b"x", "a", "events", headers={"CC": ["a", "elsewhere"]})

        assert await client.count("q0") == 1


async def test_the_alternate_exchange_gets_messages_without_a_queue(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("rest")
        await bind(client, "rest", "amq.fanout")
        request = commands.Exchange.Declare(
            exchange="events", arguments={"alternate-exchange": "amq.fanout"}
        )
        await client.asks(request, commands.Exchange.DeclareOk)
        await client.publish(b"x", "unknown", "events")

        assert await reached(client, "rest") == ["rest"]


async def test_a_headers_exchange_routes_what_another_exchange_gives_it(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("vips")
        bind = commands.Exchange.Bind(destination="amq.headers", source="amq.fanout")
        await client.asks(bind, commands.Exchange.BindOk)
        only = commands.Queue.Bind(queue="vips", exchange="amq.headers", arguments={"vip": True})
        await client.asks(only, commands.Queue.BindOk)
        await client.publish(b"x", "", "amq.fanout", headers={"vip": True})
        await client.publish(b"x", "", "amq.fanout", headers={"vip": False})

        assert await client.count("vips") == 1


async def test_an_exchange_is_refused_in_the_words_of_rabbitmq(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await bound(client, "topic", "a")
        other = commands.Exchange.Declare(exchange="events", exchange_type="direct")
        text = "inequivalent arg 'type' for exchange 'events' in vhost '/': received 'direct'"
        await client.is_refused(other, 406, text)
        missing = commands.Queue.Bind(queue="missing, too", exchange="nothing")
        await client.is_refused(missing, 404, "no exchange 'nothing' in vhost '/'")
        for passive in (False, True):
            default = commands.Exchange.Declare(exchange="", passive=passive)
            await client.is_refused(default, 403, "operation not permitted on the default exchange")
        used = commands.Exchange.Delete(exchange="events", if_unused=True)
        await client.is_refused(used, 406, "in use")
        await client.asks(commands.Exchange.Delete(exchange="events"), commands.Exchange.DeleteOk)
        bound_nowhere = commands.Queue.Unbind(queue="nowhere", exchange="events")
        await client.asks(bound_nowhere, commands.Queue.UnbindOk)
        gone = commands.Exchange.Declare(exchange="events", passive=True)
        await client.is_refused(gone, 404, "no exchange 'events'")


async def test_exchanges_and_bindings_outlive_a_restart(autojump_clock) -> None:
    known = KnownTopology()
    async with site(known=known) as here:
        client = await here.connect()
        await bound(client, "topic", "a", "b")
        unbind = commands.Queue.Unbind(queue="q1", exchange="events", routing_key="b")
        await client.asks(unbind, commands.Queue.UnbindOk)
        await client.asks(commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)
        broker = here.broker
    async with site(broker=broker, known=known) as here:
        client = await here.connect()
        for key in ("a", "b"):
            await client.publish(b"x", key, "events")
        other = commands.Queue.Declare(queue="q0", durable=True)
        await client.is_refused(other, 406, "inequivalent arg 'durable'")

        assert await reached(client, "q0", "q1") == ["q0"]
        assert [info.path.name for info in await broker.list_queues()] == ["q0", "q1"]


async def dead_letters(client: Client, **arguments: Any) -> None:
    """A queue `src` whose dead letters come to `dead`."""
    await client.declares("dead")
    await bind(client, "dead", "amq.fanout")
    await client.declares("src", x_dead_letter_exchange="amq.fanout", **arguments)


async def test_a_rejected_message_is_dead_lettered_to_its_exchange(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await dead_letters(client, x_dead_letter_routing_key="late")
        await client.publish(b"x", "src", headers={"own": 1})
        await client.gets("src", no_ack=False)
        await client.send(commands.Basic.Reject(delivery_tag=1, requeue=False))
        got = await client.until_it_gets("dead")

    [death] = got.properties.headers["x-death"]
    assert (got.body, got.method.routing_key, got.properties.headers["own"]) == (b"x", "late", 1)
    assert (death["queue"], death["reason"], death["count"]) == ("src", "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", ["src"])
    assert got.properties.headers["x-first-death-reason"] == "rejected"


async def test_a_second_death_for_the_same_reason_is_counted_and_keeps_the_first(
    autojump_clock,
) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("src", x_dead_letter_exchange="amq.fanout")
        await bind(client, "src", "amq.fanout")
        await client.publish(b"x", "src")
        await client.gets("src", no_ack=False)
        await client.send(commands.Basic.Reject(delivery_tag=1, requeue=False))
        with trio.fail_after(60):
            while await client.gets("src", no_ack=False) is None:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await client.send(commands.Basic.Reject(delivery_tag=2, requeue=False))
        got = await client.until_it_gets("src")

    [death] = got.properties.headers["x-death"]
    assert (death["count"], death["exchange"], death["routing-keys"]) == (2, "", ["src"])


@pytest.mark.parametrize("of_queue", [True, False])
async def test_an_expired_message_is_dead_lettered(autojump_clock, of_queue: bool) -> None:
    async with site() as here:
        client = await here.connect()
        await dead_letters(client, **({"x_message_ttl": 500} if of_queue else {}))
        await client.publish(b"x", "src", **({} if of_queue else {"expiration": "500"}))
        assert await client.gets("dead") is None
        got = await client.until_it_gets("dead")

    [death] = got.properties.headers["x-death"]
    assert (death["reason"], got.properties.expiration) == ("expired", None)
    assert death.get("original-expiration") == (None if of_queue else "500")


async def test_a_message_that_goes_round_is_dropped(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares(
            "src", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="src"
        )
        await client.publish(b"x", "src")
        await trio.sleep(60)
        counts = []
        for _ in range(20):  # it would be there for 100 ms each time
            counts.append(await client.count("src"))
            await trio.sleep(0.03)

    assert sum(counts) == 0


async def test_a_full_queue_drops_its_oldest_messages(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await dead_letters(client, x_max_length=2)
        for number in range(4):
            await client.publish(b"%d" % number, "src")
        assert await client.count("src") == 2
        dead = [await client.until_it_gets("dead") for _ in range(2)]

    assert [each.body for each in dead] == [b"0", b"1"]
    assert dead[0].properties.headers["x-death"][0]["reason"] == "maxlen"


async def test_a_full_queue_refuses_publishes_where_it_says_so(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("few", x_max_length=1, x_overflow="reject-publish")
        await client.confirms()
        await client.publish(b"first", "few")
        await client.hears(commands.Basic.Ack)
        await client.publish(b"second", "few")
        await client.hears(commands.Basic.Nack)

        assert await here.bodies("few") == [b"first"]


async def test_a_message_is_delivered_as_often_as_its_queue_says(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await dead_letters(client, x_delivery_limit=1)
        await client.publish(b"x", "src")
        for tag in (1, 2):
            assert await client.gets("src", no_ack=False) is not None
            await client.send(commands.Basic.Nack(delivery_tag=tag, requeue=True))
        got = await client.until_it_gets("dead")

    assert got.properties.headers["x-death"][0]["reason"] == "delivery_limit"


async def test_a_queue_that_nobody_uses_expires(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("short", x_expires=1000)
        await trio.sleep(0.9)
        await client.count("short")
        await trio.sleep(0.9)
        await client.count("short")
        await trio.sleep(1.1)
        passive = commands.Queue.Declare(queue="short", passive=True)

        await client.is_refused(passive, 404, "no queue 'short'")


async def test_a_reply_goes_straight_to_the_channel_that_asked(autojump_clock) -> None:
    pseudo = "amq.rabbitmq.reply-to"
    async with site() as here:
        client, server = await here.connect(), await here.connect()
        await client.declares("rpc")
        await client.publish(b"too early", "rpc", reply_to=pseudo)
        close = (await client.hears(commands.Channel.Close)).method
        assert "fast reply consumer does not exist" in close.reply_text
        await client.send(commands.Channel.CloseOk())
        await client.asks(commands.Channel.Open(), commands.Channel.OpenOk)
        consume = commands.Basic.Consume(queue=pseudo, no_ack=True)
        await client.asks(consume, commands.Basic.ConsumeOk)
        await client.publish(b"question", "rpc", reply_to=pseudo)
        asked = await server.until_it_gets("rpc")
        await server.publish(b"answer", asked.properties.reply_to)
        answer = await client.hears(commands.Basic.Deliver)
        await client.stream.aclose()
        await trio.sleep(1)
        await server.publish(b"late", asked.properties.reply_to, mandatory=True)
        await server.hears(commands.Basic.Return)

    assert answer.body == b"answer"


@pytest.mark.parametrize(
    ("other", "code", "text"),
    [
        ({"exclusive": True}, 405, "cannot obtain exclusive access to locked queue 'orders'"),
        ({"arguments": {"x-message-ttl": 1000.0}}, 406, "inequivalent arg 'x-message-ttl'"),
    ],
)
async def test_a_queue_that_is_declared_otherwise_is_refused(
    autojump_clock, other: dict[str, Any], code: int, text: str
) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders", x_message_ttl=1000)

        again = {"arguments": {"x-message-ttl": 1000}, **other}
        await client.is_refused(commands.Queue.Declare(queue="orders", **again), code, text)


async def test_an_argument_without_effect_is_not_compared(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("orders")

        assert (await client.declares("orders", remark="ours")).queue == "orders"


async def test_a_queue_is_declared_without_the_line_ends_of_its_name(autojump_clock) -> None:
    request = commands.Queue.Declare()
    request.queue = "or\r\nders\n"
    async with site() as here:
        client = await here.connect()

        assert (
            await client.asks(with_any_name(request), commands.Queue.DeclareOk)
        ).queue == "orders"
        assert await client.count("orders") == 0


async def test_a_client_that_takes_smaller_frames_than_it_must_is_refused(autojump_clock) -> None:
    async with site() as here:
        client = Peer(here.opened().stream)
        with pytest.raises(AssertionError, match=r"Connection\.Close"):
            await log_in(client, frame_max=100, **GUEST)


async def test_a_dead_letter_that_is_published_again_is_dead_lettered_again(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
        await client.declares("src", x_message_ttl=100, **dead)
        await client.declares("dead")
        await client.publish(b"x", "src")
        first = await client.until_it_gets("dead")
        await client.publish(b"x", "src", headers=first.properties.headers)
        again = await client.until_it_gets("dead")

    assert [each["count"] for each in again.properties.headers["x-death"]] == [2]


async def test_an_argument_of_an_exchange_without_effect_is_not_compared(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        for arguments in ({}, {"remark": "ours"}, {}):
            request = commands.Exchange.Declare(exchange="events", arguments=arguments)
            await client.asks(request, commands.Exchange.DeclareOk)

        other = commands.Exchange.Declare(exchange="events", arguments={ALTERNATE: "other"})
        await client.is_refused(other, 406, "inequivalent arg 'alternate-exchange'")


async def test_a_message_that_comes_back_to_a_full_queue_is_its_oldest(autojump_clock) -> None:
    async with site() as here:
        client = await here.connect()
        await client.declares("short", x_max_length=1)
        await client.publish(b"first", "short")
        assert await client.gets("short", no_ack=False) is not None
        await client.publish(b"second", "short")
        await client.send(commands.Basic.Nack(1, requeue=True))

        got = await client.gets("short")
        assert got is not None
        assert (got.body, await client.gets("short")) == (b"second", None)
