"""Receiving and settling over REST."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.domain.entity import EntityPath, QueueProperties
from gateway.frontends.leases import Leases
from gateway.wire.http.messages import Response
from tests.frontends.rest_client import (
    Client,
    broker_properties,
    detail,
    frontend_of,
    head,
    locked_target,
    wall_clock,
)
from tests.harness.faults import (
    Fault,
    FaultyBroker,
    Hang,
    LoseAnswer,
    Operation,
    Refuse,
    Reset,
    no_fault,
)


@pytest.fixture
async def faulty(nursery: trio.Nursery, client: Client) -> FaultyBroker:
    """A namespace with faults, between the client's front end and its broker."""
    faulty = FaultyBroker(inner=client.broker)
    leases = Leases(faulty, wall_clock)
    await nursery.start(faulty.run)
    await nursery.start(leases.run)
    client.frontend = frontend_of(faulty, leases)
    return faulty


def on_settle(fault: Fault) -> Callable[[Operation, EntityPath], Fault | None]:
    return lambda operation, _: fault if operation is Operation.SETTLE else None


async def test_location_names_the_clients_own_host(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")

    received = await head(client)

    properties = broker_properties(received)
    assert received.headers.get("Location") == (
        f"http://localhost:8080/orders/messages/{properties['SequenceNumber']}"
        f"/{properties['LockToken']}"
    )


async def test_completed_message_is_gone(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    statuses = [(await client.ask("DELETE", target)).status for _ in range(2)]

    assert statuses == [200, 404]
    await trio.sleep(100)
    assert (await head(client)).status == 204


async def test_abandoned_message_comes_again_at_once(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")

    answer = await client.ask("PUT", await locked_target(client))

    assert answer.status == 200
    assert broker_properties(await head(client))["DeliveryCount"] == 2


async def test_lock_that_ran_out_is_404_and_the_message_comes_again(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    await trio.sleep(61)

    answer = await client.ask("DELETE", target)
    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (404, "lock-lost")
    assert (await head(client)).status == 201


async def test_renewed_lock_holds_on(autojump_clock: MockClock, client: Client) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)
    await trio.sleep(50)

    renewed = await client.ask("POST", target)

    await trio.sleep(50)
    assert renewed.status == 200
    assert (await client.ask("DELETE", target)).status == 200


async def test_message_id_may_stand_for_the_sequence_number(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages", BrokerProperties='{"MessageId":"a b"}')
    token = (await locked_target(client)).rpartition("/")[2]

    assert (await client.ask("DELETE", f"/orders/messages/a%20b/{token}")).status == 200


async def test_destructive_receive_takes_the_message_away(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    received = await head(client, "DELETE")

    assert (received.status, received.body) == (200, b"once")
    assert received.headers.get("Location") is None
    assert not {"LockToken", "LockedUntilUtc"} & broker_properties(received).keys()
    await trio.sleep(100)
    assert (await head(client)).status == 204


async def test_destructive_receive_that_cannot_delete_hands_out_nothing(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    faulty.fault = on_settle(Refuse())
    refused = await head(client, "DELETE")
    faulty.fault = no_fault

    assert (refused.status, refused.headers.get("Retry-After")) == (503, "1")
    await trio.sleep(61)
    assert (await head(client, "DELETE")).body == b"once"


async def test_destructive_receive_with_unknown_outcome_hands_the_message_out(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker
) -> None:
    await client.ask("POST", "/orders/messages", b"once")

    faulty.fault = on_settle(LoseAnswer())

    assert (await head(client, "DELETE")).body == b"once"


@pytest.mark.parametrize("seconds", [0, 7])
@pytest.mark.parametrize(
    "fault", [Refuse(), Reset(), Hang()], ids=["refuses", "breaks", "says nothing"]
)
async def test_a_queue_out_of_reach_is_503_and_never_204(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker, seconds: int, fault: Fault
) -> None:
    faulty.fault = lambda operation, _: fault if operation is Operation.RECEIVE else None

    answers = [await head(client, method, seconds) for method in ("POST", "DELETE")]

    assert [each.status for each in answers] == [503, 503]
    assert [each.headers.get("Retry-After") for each in answers] == ["1", "1"]
    assert answers[0].headers.get("X-Pairgate-Outcome") == "not-sent"


async def test_a_client_that_asks_again_at_once_gets_an_error_a_second(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker
) -> None:
    faulty.crash()
    start, errors = trio.current_time(), 0

    while trio.current_time() < start + 20:
        errors += (await head(client, seconds=30)).status == 503

    assert errors == 20


async def test_an_answer_behind_the_clients_time_is_the_namespaces(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker
) -> None:
    await client.ask("POST", "/orders/messages", b"slow")
    faulty.latency = lambda: 0.2

    assert (await head(client, seconds=0)).body == b"slow"
    assert (await head(client, seconds=0)).status == 204


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("seconds", [0, 7])
async def test_empty_queue_is_204_after_the_clients_wait(
    autojump_clock: MockClock, client: Client, method: str, seconds: int
) -> None:
    start = trio.current_time()

    answer = await head(client, method, seconds)

    assert (answer.status, answer.body) == (204, b"")
    assert trio.current_time() - start == pytest.approx(seconds, abs=0.01)


async def test_wait_is_60_seconds_unless_the_client_says_another_and_never_above_the_cap(
    autojump_clock: MockClock, client: Client
) -> None:
    start = trio.current_time()
    await client.ask("POST", "/orders/messages/head")
    default = trio.current_time() - start
    await head(client, seconds=1000)

    assert default == pytest.approx(60)
    assert trio.current_time() - start - default == pytest.approx(240)


async def test_waiting_receive_gets_what_arrives(
    autojump_clock: MockClock, client: Client, nursery: trio.Nursery
) -> None:
    answers: list[Response] = []

    async def wait() -> None:
        answers.append(await head(client, seconds=60))

    async with trio.open_nursery() as requests:
        requests.start_soon(wait)
        await wait_all_tasks_blocked()
        await client.ask("POST", "/orders/messages", b"late")

    assert [answer.body for answer in answers] == [b"late"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_client_that_goes_away_while_waiting_loses_nothing(
    autojump_clock: MockClock, client: Client, method: str
) -> None:
    async with trio.open_nursery() as requests:
        requests.start_soon(head, client, method, 60)
        await wait_all_tasks_blocked()
        requests.cancel_scope.cancel()

    await client.ask("POST", "/orders/messages", b"kept")

    assert (await head(client)).body == b"kept"


async def test_receive_from_a_missing_queue_is_404(
    autojump_clock: MockClock, client: Client
) -> None:
    answer = await client.ask("POST", "/missing/messages/head?timeout=5")

    assert (answer.status, answer.headers.get("X-Pairgate-Error")) == (404, "entity-not-found")


async def test_queue_that_requires_sessions_has_no_rest_receiver(
    autojump_clock: MockClock, client: Client
) -> None:
    properties = QueueProperties(requires_session=True)
    await client.broker.create_queue(EntityPath("sessions"), properties)

    answer = await client.ask("POST", "/sessions/messages/head?timeout=0")

    assert answer.status == 405
    assert "requires sessions" in detail(answer)


@pytest.mark.parametrize("fault", [LoseAnswer(), Reset()], ids=["done", "not done"])
async def test_a_completion_without_an_answer_is_unknown_and_stays_unknown(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker, fault: Fault
) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    faulty.fault = on_settle(fault)
    first = await client.ask("DELETE", target)
    faulty.fault = no_fault
    await trio.sleep(61)  # the lock has ended
    later = [await client.ask(method, target) for method in ("DELETE", "PUT", "POST")]

    assert [answer.status for answer in (first, *later)] == [504] * 4
    assert {answer.headers.get("X-Pairgate-Outcome") for answer in later} == {"unknown"}


async def test_a_completion_that_is_repeated_in_time_is_known(
    autojump_clock: MockClock, client: Client, faulty: FaultyBroker
) -> None:
    await client.ask("POST", "/orders/messages")
    target = await locked_target(client)

    faulty.fault = on_settle(Reset())
    first = await client.ask("DELETE", target)
    faulty.fault = no_fault

    assert (first.status, (await client.ask("DELETE", target)).status) == (504, 200)
    assert (await client.ask("DELETE", target)).status == 404
