"""
The rights table: each credential with each operation on each entity, at each front end.

A row's verdict is computed by `model`, and compared with the front end's. A refused operation must
not have reached the namespace at all.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.wire.amqp.events import LinkAttached, LinkDetached, LinkId
from gateway.wire.http.messages import Headers, Request
from gateway.wire.servicebus.atom import build_request
from gateway.wire.servicebus.atom_operations import DEAD_LETTER_TOKEN, FORWARD_TOKEN, PutQueue
from tests.frontends.bearer import World as Provider
from tests.frontends.storage_client import open_client
from tests.security.rights import over_amqp, over_storage
from tests.security.rights import over_http as http
from tests.security.rights.credentials import (
    ANYBODY,
    NOTHING,
    OWN,
    POLICIES,
    TO_ANYBODY,
    Credential,
    certificates,
    keys,
    signatures,
    tokens,
)
from tests.security.rights.model import Entity, Kind, Permit
from tests.security.rights.world import ENTITIES, NAMESPACE, World

pytestmark = pytest.mark.slow

MIN_ROWS = 1000  # of each protocol: a table that lost its rows would show nothing
OVER_HTTP: dict[str, tuple[tuple[http.Operation, ...], Callable[[World], http.Handle]]] = {
    "rest": (http.REST, http.rest_of),
    "atom": (http.ATOM, http.rest_of),
    "admin": (http.ADMIN, http.admin_of),
}


def entities_of(
    operation: http.Operation | over_amqp.Operation, permit: Permit
) -> Iterable[Entity]:
    """The entities of the operation's rows: one of each kind, if nothing is permitted anyway."""
    found = [entity for entity in (NAMESPACE, *ENTITIES) if entity.kind in operation.on]
    if permit.grants:
        return found
    return {entity.kind: entity for entity in reversed(found)}.values()


def credentials_of(provider: Provider, protocol: str) -> Iterator[Credential]:
    yield NOTHING
    if protocol != "storage":
        yield from signatures()
    yield from tokens(provider)
    yield from certificates()
    if protocol in {"admin", "amqp"}:
        yield from keys()


async def judged_over_amqp(
    world: World, ways: Iterable[over_amqp.Way]
) -> tuple[int, list[tuple[str, str, str, bool, str]]]:
    """The number of rows, and those whose verdict is wrong."""
    rows, wrong = 0, []
    for way in ways:
        async with trio.open_nursery() as connections:
            client = await over_amqp.Client.open(world, way, connections)
            for operation in over_amqp.OPERATIONS:
                for entity in entities_of(operation, way.permit):
                    may = operation.allows(way.permit, entity)
                    found = await client.verdict(operation, entity, may=may)
                    rows += 1
                    if found != ("done" if may else "refused"):
                        wrong.append((way.name, operation.name, entity.written, may, found))
            connections.cancel_scope.cancel()
    return rows, wrong


@pytest.mark.parametrize("protocol", OVER_HTTP)
async def test_over_http_each_credential_has_its_rights_and_no_other(
    protocol: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery)
    operations, frontend_of = OVER_HTTP[protocol]
    handle = frontend_of(world)
    rows, wrong = 0, []
    for credential in credentials_of(world.provider, protocol):
        for operation in operations:
            for entity in entities_of(operation, credential.permit):
                may = operation.allows(credential.permit, entity)
                found = await http.verdict(handle, world, credential, operation, entity)
                rows += 1
                if found != ("done" if may else "refused"):
                    wrong.append((credential.name, operation.name, entity.written, may, found))

    assert not wrong, f"{len(wrong)} of {rows}: {wrong[:40]}"
    assert rows > MIN_ROWS


async def test_over_amqp_each_credential_has_its_rights_and_no_other(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery)
    ways = [
        way
        for credential in credentials_of(world.provider, "amqp")
        for way in over_amqp.ways_of(credential)
    ]
    rows, wrong = await judged_over_amqp(world, ways)

    assert not wrong, f"{len(wrong)} of {rows}: {wrong[:40]}"
    assert rows > MIN_ROWS


async def test_clients_without_credentials_have_the_rights_of_anonymous_policies_over_amqp_alone(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery, [*POLICIES, ANYBODY])
    ways = over_amqp.ways_of_nobody(Permit(grants=(TO_ANYBODY,)))
    rows, wrong = await judged_over_amqp(world, ways)
    for operations, frontend_of in OVER_HTTP.values():
        for asked in operations:
            for entity in entities_of(asked, Permit()):
                found = await http.verdict(frontend_of(world), world, NOTHING, asked, entity)
                rows += 1
                if found != "refused":
                    wrong.append(("over HTTP", asked.name, entity.written, False, found))

    assert not wrong, f"{len(wrong)} of {rows}: {wrong[:40]}"


async def test_at_the_queue_service_each_credential_has_its_rights_and_no_other(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery)
    [manager] = (each for each in tokens(world.provider) if each.name == "token all-Manage")
    credentials = [
        *over_storage.account_credentials(),
        *map(over_storage.by_rights, credentials_of(world.provider, "storage")),
        *map(over_storage.by_delegation, tokens(world.provider)),
        *over_storage.by_bound_delegations(manager, world.provider),
    ]
    rows, wrong = 0, []
    async with open_client() as client:
        noted = await over_storage.prepare(client, world)
        for credential in credentials:
            for operation in over_storage.OPERATIONS:
                for queue in over_storage.QUEUES[: 1 if operation.on_account else None]:
                    may = credential.allows(operation, queue)
                    found = await over_storage.verdict(
                        client, noted, credential, operation, queue, may=may
                    )
                    rows += 1
                    if found != ("done" if may else "refused"):
                        wrong.append((credential.name, operation.name, queue, may, found))

    assert not wrong, f"{len(wrong)} of {rows}: {wrong[:40]}"
    assert rows > MIN_ROWS


# Spellings by which a path could be taken for one entity where rights are checked, and for another
# one where the namespace is called.
_JOINTS = (
    *("/", "//", "/./", "/../", "%2F", "%2f..%2f", "%2E%2E/", "/..%2F", "\\", "%5C", "%00", ";"),
    *(
        "%3F",
        "%23",
        "%252F",
        "%20",
        "+",
        "\u212a",
        "%E2%84%AA",
        "/$management/",
        "%2F%24management%2F",
    ),
    *(
        "/subscriptions/",
        "/subscriptions/x/",
        "/$deadletterqueue/",
        "/messages/",
        "/messages/head/",
    ),
)
SPELLINGS = tuple(
    f"{first}{joint}{last}"
    for joint in _JOINTS
    for first, last in (
        ("orders", "invoices"),
        ("invoices", "orders"),
        ("invoices", ""),
        ("", "invoices"),
    )
)


def foreign(world: World) -> set[str]:
    """The entities of the namespace's requests that no policy of the client covers."""
    asked = {Entity(entity.key, Kind.QUEUE).owner for entity in world.broker.entities}
    return asked - OWN


def is_of(link: LinkId, event: LinkAttached | LinkDetached) -> bool:
    return event.link == link


@pytest.mark.parametrize("scope", ["", "orders"])
async def test_over_http_no_spelling_of_a_path_reaches_a_foreign_entity(
    scope: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery)
    handle = http.rest_of(world)
    name = f"signature own-Manage for {scope}" if scope else "signature own-Manage"
    (own,) = (each for each in signatures() if each.name == name)
    for spelling in SPELLINGS:
        for method, tail in (
            *(("POST", "/messages"), ("POST", "/messages/head?timeout=0"), ("GET", "")),
            *(("DELETE", ""), ("GET", "/subscriptions/x"), ("GET", "/subscriptions/x/rules")),
        ):
            fields = {"Host": "localhost", "Authorization": own.header or ""}
            request = Request(
                method=method, target=f"/{spelling}{tail}", headers=Headers.of(fields)
            )
            answer = await handle(request)
            assert answer.status != 500, request.target
            assert not foreign(world), request.target


async def test_over_amqp_no_spelling_of_an_address_reaches_a_foreign_entity(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world = await World.open(nursery)
    (own,) = (each for each in signatures() if each.name == "signature own-Manage")
    (way,) = over_amqp.ways_of(own)
    client = await over_amqp.Client.open(world, way, nursery)
    sdk = client.sdk
    assert sdk is not None
    for spelling in SPELLINGS:
        for address in (spelling, f"sb://invoices/{spelling}", f"{spelling}/$management"):
            for we_send in (True, False):
                link = sdk.attach(we_send=we_send, address=address)
                await sdk.until(LinkAttached | LinkDetached, partial(is_of, link))
                sdk.engine.detach(link)
                assert not foreign(world), address


@pytest.mark.parametrize(
    ("of_target", "header", "status"),
    [
        ("own-Manage", FORWARD_TOKEN, 401),
        ("all-Send", FORWARD_TOKEN, 401),
        ("all-Manage", FORWARD_TOKEN, 201),
        ("all-Manage", DEAD_LETTER_TOKEN, 401),
    ],
)
async def test_a_forwarding_entity_needs_a_token_that_manages_the_target(
    of_target: str, header: str, status: int, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """As the SDKs send it: a token of its own for each target."""
    world = await World.open(nursery)
    signed = {each.name: each.header or "" for each in signatures()}
    forwarding = PutQueue(
        entity=EntityPath("new"), properties=QueueProperties(forward_to="orders2")
    )
    request = build_request(forwarding)
    fields = [
        ("Host", "localhost"),
        ("Authorization", signed["signature own-Manage"]),
        (header, signed[f"signature {of_target}"]),
        *request.headers.items,
    ]

    answer = await http.rest_of(world)(attrs.evolve(request, headers=Headers.of(fields)))

    assert answer.status == status
    assert ("create_queue" in world.broker.calls) is (status == 201)
