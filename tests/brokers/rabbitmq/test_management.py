"""
RabbitMQ's management plugin adds two things: policies are seen, queues are listed. On a real node.
"""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.brokers.rabbitmq.management import PluginManagement
from gateway.brokers.rabbitmq.settings import UNLIMITED
from gateway.demo.ports import free_port
from gateway.domain.entity import EntityPath, QueueProperties
from gateway.domain.errors import InvalidRequest, NotAuthorized, NotSupported, Unavailable
from gateway.domain.message import Message
from gateway.net.http.client import HttpClient
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.rabbitmq.management import ManagementLogin
from tests.brokers.rabbitmq.nodes import Namespace, Nodes, client
from tests.harness.patience import PATIENCE
from tests.harness.rabbitmq import MANAGEMENT, USER, add_user, management_at, rabbitmq

pytestmark = pytest.mark.live

ORDERS = EntityPath("orders")
QUORUM = {"x-queue-type": "quorum"}
REFUSES = {"x-overflow": "reject-publish"}
NOT_YET = "its policies aren't known"
NOT_QUORUM = "it is a classic queue, not quorum"
DROPS = "it drops its oldest messages when it is full (overflow drop-head{})"
BY = ", by policy {}"


@attrs.frozen(kw_only=True)
class Case:
    """A queue made with `arguments`, and with a policy of its own; `doubts` of it as a backlog."""

    arguments: dict[str, Any]
    policy: dict[str, Any] | None = None
    operator: bool = False  # whose policy it is
    doubts: tuple[str, ...] = ()


CASES = {
    "no-policy": Case(arguments=QUORUM | REFUSES | {"x-max-length": 9}),
    "harmless": Case(arguments=QUORUM | REFUSES, policy={"max-length": 9}),
    "full": Case(arguments=QUORUM, policy={"max-length": 9}, doubts=(DROPS.format(BY),)),
    "overflow": Case(
        arguments=QUORUM | REFUSES,
        policy={"overflow": "drop-head", "max-length": 9},
        doubts=(DROPS.format(BY),),
    ),
    "overflow-of-classic": Case(
        arguments=REFUSES,
        policy={"overflow": "drop-head", "max-length": 9},
        doubts=(NOT_QUORUM,),
    ),
    "saved-by-policy": Case(
        arguments=QUORUM | {"x-overflow": "drop-head", "x-max-length": 9},
        policy={"overflow": "reject-publish"},
    ),
    "operators": Case(
        arguments=QUORUM, policy={"max-length": 9}, operator=True, doubts=(DROPS.format(BY),)
    ),
    "limit": Case(
        arguments=QUORUM,
        policy={"delivery-limit": 7},
        doubts=(f"it gives a message up after 7 failed deliveries{BY}",),
    ),
    "smaller-limit": Case(
        arguments=QUORUM | {"x-delivery-limit": 7},
        policy={"delivery-limit": 3},
        doubts=(f"it gives a message up after 3 failed deliveries{BY}",),
    ),
    "larger-limit": Case(
        arguments=QUORUM | {"x-delivery-limit": 3},
        policy={"delivery-limit": 7},
        doubts=("it gives a message up after 3 failed deliveries",),
    ),
    "expiring": Case(
        arguments=QUORUM,
        policy={"message-ttl": 3_600_000, "expires": 3_600_000},
        doubts=(f"its messages expire{BY}", f"it is deleted when idle{BY}"),
    ),
}


@asynccontextmanager
async def managed(rabbits: Nodes) -> AsyncIterator[Namespace]:
    async with rabbits.namespace("primary", management=rabbits.management("primary")) as namespace:
        yield namespace


async def set_policy(rabbits: Nodes, namespace: Namespace, name: str, case: Case) -> None:
    pattern = f"^{namespace.inside(EntityPath(name)).name}$"
    policy = {"pattern": pattern, "definition": case.policy, "apply-to": "queues"}
    assert await ask_about_policy(rabbits, "PUT", name, case, json.dumps(policy).encode()) == 201


async def clear_policy(rabbits: Nodes, name: str, case: Case) -> None:
    assert await ask_about_policy(rabbits, "DELETE", name, case) == 204


async def ask_about_policy(
    rabbits: Nodes, method: str, name: str, case: Case, body: bytes = b""
) -> int:
    kind = "operator-policies" if case.operator else "policies"
    login = base64.b64encode(f"{USER}:{USER}".encode()).decode()
    request = Request(
        method=method,
        target=f"/api/{kind}/%2F/{name}",
        headers=Headers(
            (("Authorization", f"Basic {login}"), ("Content-Type", "application/json"))
        ),
        body=body,
    )
    async with HttpClient("127.0.0.1", rabbits.management_port("primary")) as plugin:
        return (await plugin.request(request)).status


async def doubts_of(namespace: Namespace, name: str) -> list[str]:
    """Return the doubts about a queue once its statistics are known."""
    with trio.fail_after(PATIENCE):
        while True:
            doubts = list(await namespace.verify(EntityPath(name), is_backlog=True))
            if not doubts or not doubts[0].startswith(NOT_YET):
                return doubts
            await trio.sleep(0.5)


async def test_a_setting_of_a_policy_is_seen(rabbits: Nodes) -> None:
    with_policy = {name: case for name, case in CASES.items() if case.policy is not None}
    async with managed(rabbits) as namespace:
        try:
            for name, case in with_policy.items():
                await set_policy(rabbits, namespace, name, case)
            for name, case in CASES.items():
                await namespace.declare(EntityPath(name), case.arguments)
            found = {name: await doubts_of(namespace, name) for name in CASES}
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                for name, case in with_policy.items():
                    await clear_policy(rabbits, name, case)

    expected = {name: [d.format(name) for d in case.doubts] for name, case in CASES.items()}
    assert found == expected


async def test_an_overflow_by_policy_drops_in_spite_of_the_argument(rabbits: Nodes) -> None:
    """Shows why there is a doubt: acknowledged messages are gone."""
    case = CASES["overflow"]
    async with managed(rabbits) as namespace:
        await set_policy(rabbits, namespace, ORDERS.name, case)
        try:
            await namespace.declare(ORDERS, case.arguments)
            for number in range(30):
                await namespace.send(ORDERS, [Message(message_id=str(number))])
            left = (await namespace.inspect(ORDERS)).active
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                await clear_policy(rabbits, ORDERS.name, case)

    assert left == 9


async def test_a_new_queue_is_doubtful_until_its_policies_are_known(rabbits: Nodes) -> None:
    async with managed(rabbits) as namespace:
        await namespace.create_queue(ORDERS, QueueProperties(max_delivery_count=UNLIMITED))
        [doubt] = await namespace.verify(ORDERS, is_backlog=True)
        later = await doubts_of(namespace, ORDERS.name)

    assert doubt.startswith(NOT_YET)
    assert later == []


async def test_queues_are_listed_by_name_without_their_dead_letters(rabbits: Nodes) -> None:
    async with managed(rabbits) as namespace:
        for name in ("b", "a", "c.d"):
            await namespace.create_queue(EntityPath(name), QueueProperties())
        await namespace.declare(EntityPath("no entity"), QUORUM)
        prefix = f"{namespace.name}/".upper()

        async def listed(prefix: str, **page: int) -> list[str]:
            found = await namespace.broker.list_queues(prefix, **page)
            return [info.path.name.removeprefix(f"{namespace.name}/") for info in found]

        assert await listed(prefix) == ["a", "b", "c.d"]
        assert await listed(prefix, top=2) == ["a", "b"]
        assert await listed(prefix, skip=2) == ["c.d"]
        assert await listed(prefix, skip=500) == []
        assert await listed(f"{prefix}C.") == ["c.d"]
        assert await listed(f"{prefix}.") == []


async def test_a_plugin_without_statistics_leaves_the_counting_to_the_broker(
    tmp_path: Path,
) -> None:
    """As with `management_agent.disable_metrics_collector`, where Prometheus has the metrics."""
    http = free_port()
    settings = (*management_at(http), "management_agent.disable_metrics_collector = true")
    async with (
        rabbitmq(tmp_path, plugins=(MANAGEMENT,), settings=settings) as (_, port),
        client(port, management=f"http://127.0.0.1:{http}") as broker,
    ):
        await broker.create_queue(ORDERS, QueueProperties())
        for number in range(3):
            await broker.send(ORDERS, [Message(message_id=str(number))])
        async with broker.open_receiver(ORDERS) as receiver:
            locked = await receiver.receive(1)
            [info] = await broker.list_queues()

    assert (info.path, info.active, info.locked_here) == (ORDERS, 3 - len(locked), len(locked))
    assert info.lag == 0


@attrs.frozen
class Plugin:
    """Answers as the plugin does: with a number of queues, by pages."""

    queues: int

    async def request(self, request: Request) -> Response:
        await trio.lowlevel.checkpoint()
        page, size = int(request.query["page"]), int(request.query["page_size"])
        pages = -(-self.queues // size)
        if page > max(pages, 1):
            return Response(status=400, body=b'{"error": "page_out_of_range"}')
        numbers = range((page - 1) * size, min(page * size, self.queues))
        items = [{"name": f"{number:04}", "type": "quorum", "arguments": {}} for number in numbers]
        answer = {"items": items, "page": page, "page_count": pages}
        return Response(status=200, body=json.dumps(answer).encode())


@pytest.mark.parametrize("queues", [0, 1, 499, 500, 501, 1000, 1300])
@pytest.mark.parametrize(
    ("skip", "top"), [(0, 100), (450, 100), (499, 1), (500, 500), (499, 501), (100, 1000)]
)
async def test_a_page_of_ours_may_be_several_of_the_plugins(
    queues: int, skip: int, top: int
) -> None:
    login = ManagementLogin(user="u", password="p", vhost="/")
    management = PluginManagement(client=Plugin(queues), login=login)

    found = await management.queues("", skip, top)

    assert [int(each.name) for each in found] == [*range(queues)][skip : skip + top]


async def test_a_list_tells_how_many_messages_there_are(rabbits: Nodes) -> None:
    async with managed(rabbits) as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [Message(message_id=str(number)) for number in range(3)])
        async with namespace.open_receiver(ORDERS) as receiver:
            await receiver.receive(1)
            active = None
            with trio.fail_after(PATIENCE):
                while active is None or active == 0:
                    [info] = await namespace.broker.list_queues(f"{namespace.name}/")
                    active = info.active
                    await trio.sleep(0.5)

    assert active + info.locked_here == 3  # locked here: the plugin hasn't counted it yet


async def test_with_a_silent_plugin_nobody_lists_and_the_rest_goes_on(rabbits: Nodes) -> None:
    async with rabbits.namespace(
        "primary", management=f"http://127.0.0.1:{free_port()}"
    ) as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await namespace.send(ORDERS, [Message(message_id="1")])

        with pytest.raises(NotSupported, match="the management plugin doesn't answer"):
            await namespace.broker.list_queues()
        [doubt] = await namespace.verify(ORDERS, is_backlog=False)
        assert "the management plugin doesn't answer" in doubt
        assert (await namespace.inspect(ORDERS)).active == 1


async def test_with_a_broker_that_is_down_the_list_is_an_outage() -> None:
    async with client(free_port(), management=f"http://127.0.0.1:{free_port()}") as broker:
        with pytest.raises(Unavailable):
            await broker.list_queues()


async def test_a_user_without_access_to_the_plugin_is_told_what_is_missing(rabbits: Nodes) -> None:
    node = rabbits.process("primary")
    async with rabbits.namespace("primary") as namespace:
        await namespace.create_queue(ORDERS, QueueProperties())
        await add_user(node, "untagged", "secret")
        url = rabbits.management("primary")
        async with client(
            namespace.port, user="untagged", password="secret", management=url
        ) as untagged:
            with pytest.raises(NotAuthorized, match="the tag management"):
                await untagged.list_queues()
            with pytest.raises(NotAuthorized, match="the tag management"):
                await untagged.verify(namespace.inside(ORDERS), is_backlog=True)


@pytest.mark.parametrize(
    "url",
    ["host", "ftp://host", "http://", "http://host:port", "http://host/api", "http://u:p@host"],
)
def test_a_url_that_names_no_plugin_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="management: "):
        client(5672, management=url)
