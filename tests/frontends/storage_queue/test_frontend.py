"""The Queue service over a namespace in memory: its operations, rules and limits."""

import base64
import json
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import attrs
import pytest
import trio
from hypothesis import given
from trio.testing import MockClock

from gateway.domain.entity import EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    Busy,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidRequest,
    LockLost,
    MessageNotFound,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import (
    AcceptedBy,
    Complete,
    Kind,
    Message,
    SequenceBody,
    Typed,
    ValueBody,
    symbol,
)
from gateway.frontends.leased_visibility import LeasedVisibility
from gateway.frontends.storage_queue.notes import SETTINGS, LastNotes
from gateway.wire.http.messages import Headers, Response
from gateway.wire.servicebus.rest_message import body_bytes
from gateway.wire.storage_queue import operations as storage
from gateway.wire.storage_queue.metadata import Notes, write_notes
from gateway.wire.storage_queue.rest import build_request
from gateway.wire.storage_queue.sas import build_sas
from tests.frontends.storage_client import KEY, ORDERS, Client, code, open_client
from tests.strategies import amqp_values
from tests.trace_contexts import TRACE_CONTEXT


async def test_a_message_is_put_taken_changed_and_deleted(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        (put,) = await client.put("a <b>")
        (got,) = await client.get(hidden=10)

        assert (got.message_id, got.body, got.dequeues) == (put.message_id, b"a <b>", 1)
        assert got.inserted == put.inserted
        assert got.expires == put.expires == put.inserted + timedelta(days=7)
        assert got.visible == got.inserted + timedelta(seconds=10)
        assert await client.get() == []

        changed = await client.update(got, 0, "other")
        (again,) = await client.get()
        assert (again.body, again.dequeues) == (b"other", 2)
        with pytest.raises(LockLost):
            await client.delete(changed)
        await client.delete(again)
        with pytest.raises(MessageNotFound):
            await client.delete(again)


async def test_a_body_with_a_trace_context_stays_as_it_is(autojump_clock: MockClock) -> None:
    body = json.dumps({**TRACE_CONTEXT, "body": "order <1>"}).encode()
    async with open_client() as client:
        await client.put(body.decode())
        (got,) = await client.get()

    assert got.body == body


async def test_an_old_receipt_is_good_until_the_next_get(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        await client.put("a", "b")
        a, b = await client.get(limit=2, hidden=1)
        await trio.sleep(2)

        await client.delete(a)
        await client.get()
        with pytest.raises(LockLost):
            await client.delete(b)


async def test_messages_live_for_as_long_as_was_said(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        for life in (storage.NEVER, 60, 2**37):
            await client.do(storage.PutMessage(queue="orders", body=b"x", time_to_live=life))
        found = await client.do(storage.PeekMessages(queue="orders", limit=32))
        assert isinstance(found, storage.Messages)
        assert [each.expires is None for each in found.items] == [True, False, False]

        await trio.sleep(61)
        assert len(await client.get(limit=32)) == 2


@pytest.mark.parametrize("seconds", [604_801, 2**31, 2**37, 2**40, 10**20 - 1])
@pytest.mark.parametrize("leased", [False, True])
async def test_a_time_to_live_may_be_any_positive_number(
    seconds: int, leased: bool, autojump_clock: MockClock
) -> None:
    async with open_client(leased=leased) as client:
        request = build_request(PUT)
        target = f"{request.target}?messagettl={seconds}"
        assert (await client.send(attrs.evolve(request, target=target))).status == 201

        (got,) = await client.get()
        assert got.body == b"x"
        assert (got.expires is None) is (seconds > 2**37)


async def test_a_text_that_is_too_large_is_refused_in_the_service_s_words(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        put = storage.PutMessage(queue="orders", body=b"x" * 65_537)
        response = await client.send(build_request(put))

        assert (response.status, code(response)) == (413, "RequestBodyTooLarge")
        assert b"too large and exceeds the maximum permissible limit." in response.body
        assert b"<MaxLimit>65536</MaxLimit>" in response.body


async def test_a_peek_shows_what_is_visible_and_touches_nothing(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        await client.put("a", "b")
        await client.put("later", hidden=100)
        await client.get(hidden=100)
        for _ in range(2):
            found = await client.do(storage.PeekMessages(queue="orders", limit=32))
            assert isinstance(found, storage.Messages)
            assert [(each.body, each.dequeues) for each in found.items] == [(b"b", 0)]
            assert [each.pop_receipt for each in found.items] == [None]
        told = await client.do(storage.GetMetadata(queue="orders"))
        assert told == storage.QueueMetadata(count=3)
        await client.do(storage.ClearMessages(queue="orders"))
        assert await client.do(storage.GetMetadata(queue="orders")) == storage.QueueMetadata()


async def test_a_receipt_is_of_one_message(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        a, b = await client.put("a", "b")
        with pytest.raises(LockLost):
            await client.delete(attrs.evolve(a, pop_receipt=b.pop_receipt))
        with pytest.raises(LockLost):
            await client.delete(attrs.evolve(a, pop_receipt="bogusbogus=="))
        await client.delete(a)
        with pytest.raises(MessageNotFound):
            await client.delete(attrs.evolve(a, pop_receipt=b.pop_receipt))
        with pytest.raises(MessageNotFound):
            await client.delete(attrs.evolve(a, message_id="no-id"))


async def test_queues_are_created_once_and_again_with_the_same_metadata(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        blue = storage.CreateQueue(queue="blue", metadata={"Team": "blue"})
        assert await client.do(blue) == storage.Created()
        assert await client.do(blue) == storage.Existed()
        with pytest.raises(EntityExists):
            await client.do(storage.CreateQueue(queue="blue"))
        await client.do(storage.SetMetadata(queue="blue", metadata={"a": "1"}))
        assert await client.do(storage.GetMetadata(queue="blue")) == storage.QueueMetadata(
            metadata={"a": "1"}
        )
        await client.do(storage.DeleteQueue(queue="blue"))
        with pytest.raises(EntityNotFound):
            await client.do(storage.DeleteQueue(queue="blue"))


async def test_lists_have_pages_and_only_names_of_the_service(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        for name in ("b-1", "b-0", "b-2", "b/sub", "x_y", "b-10"):
            await client.broker.create_queue(EntityPath(name), QueueProperties())
        found: list[str] = []
        marker = ""
        while True:
            page = await client.do(storage.ListQueues(prefix="b-", marker=marker, limit=2))
            assert isinstance(page, storage.QueueList)
            found += [item.name for item in page.items]
            marker = page.next_marker
            if not marker:
                break
        assert found == ["b-0", "b-1", "b-10", "b-2"]
        with pytest.raises(InvalidRequest):
            await client.do(storage.ListQueues(marker="no name"))


async def test_user_metadata_of_others_stays(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        await client.broker.update_queue(ORDERS, QueueProperties(user_metadata="theirs"))
        assert await client.do(storage.GetMetadata(queue="orders")) == storage.QueueMetadata()
        policies = (storage.StoredPolicy(id="p", permission="r"),)
        await client.do(storage.SetAcl(queue="orders", policies=policies))
        await client.do(storage.SetMetadata(queue="orders", metadata={"a": "1"}))
        await client.do(storage.SetMetadata(queue="orders"))

        assert await client.do(storage.GetAcl(queue="orders")) == storage.Acl(policies)
        await client.do(storage.SetAcl(queue="orders"))
        assert (await client.broker.inspect(ORDERS)).properties.user_metadata == "theirs"


async def test_the_properties_that_are_not_named_stay(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        defaults = await client.do(storage.GetServiceProperties())
        assert defaults == storage.DEFAULT_PROPERTIES
        rule = storage.CorsRule(origins="*", methods="GET", exposed="*")
        metrics = storage.Metrics(enabled=True, include_apis=True)
        for wish in (
            storage.ServiceProperties(cors=(rule,)),
            storage.ServiceProperties(hour_metrics=metrics),
        ):
            await client.do(storage.SetServiceProperties(properties=wish))

        found = await client.do(storage.GetServiceProperties())
        assert found == attrs.evolve(storage.DEFAULT_PROPERTIES, cors=(rule,), hour_metrics=metrics)
        listed = await client.do(storage.ListQueues())
        assert isinstance(listed, storage.QueueList)
        assert [item.name for item in listed.items] == ["orders"]
        with pytest.raises(EntityDisabled):
            await client.broker.send(SETTINGS, [Message()])


async def test_browsers_are_allowed_what_a_rule_allows(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        rule = storage.CorsRule(
            origins="https://a.example", methods="GET", headers="x-ms-*", max_age=9
        )
        wish = storage.ServiceProperties(cors=(rule,))
        await client.do(storage.SetServiceProperties(properties=wish))

        def preflight(**fields: str) -> Any:
            return client.ask(
                "OPTIONS", "/orders/messages", Access_Control_Request_Method="GET", **fields
            )

        good = await preflight(
            Origin="https://a.example", Access_Control_Request_Headers="x-ms-date"
        )
        assert good.status == 200
        assert good.headers.get("Access-Control-Allow-Origin") == "https://a.example"
        assert good.headers.get("Access-Control-Max-Age") == "9"
        assert code(await preflight(Origin="https://b.example")) == "CorsPreflightFailure"
        header = await preflight(Origin="https://a.example", Access_Control_Request_Headers="a")
        assert code(header) == "CorsPreflightFailure"

        request = build_request(storage.PeekMessages(queue="orders"))
        origin = Headers((*request.headers.items, ("Origin", "https://a.example")))
        found = await client.send(attrs.evolve(request, headers=origin))
        assert found.headers.get("Access-Control-Allow-Origin") == "https://a.example"
        plain = await client.send(request)
        assert plain.headers.get("Access-Control-Allow-Origin") is None


async def test_the_first_version_puts_raw_bodies_and_gets_base64(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        client.version = None
        body = bytes(range(256))
        put = storage.PutMessage(queue="orders", body=body, is_raw=True)
        response = await client.send(build_request(put), lite=True)
        assert response.status == 201
        assert response.headers.get("x-ms-version") is None
        got = await client.send(build_request(storage.GetMessages(queue="orders")))

        assert base64.b64encode(body) in got.body
        listed = await client.send(build_request(storage.ListQueues()))
        assert b"<QueueName>orders</QueueName>" in listed.body


async def test_a_message_of_service_bus_is_told_as_text(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        guid = "4EC57D1C-0000-4000-8000-000000000001"
        for body in (b"text", ValueBody("value"), ValueBody({"a": 1}), b"\0"):
            await client.broker.send(ORDERS, [Message(body=body, message_id=guid)])

        got = await client.get(limit=32)
        assert [each.body for each in got] == [b"text", b"value", b'{"a": 1}', b"AA=="]
        assert {each.message_id for each in got} == {guid.lower()}
        for each in got:
            await client.delete(each)
        assert (await client.broker.inspect(ORDERS)).scheduled == 0


async def test_a_map_with_keys_of_any_type_is_told_as_json(autojump_clock: MockClock) -> None:
    body = ValueBody({symbol("a"): Typed(Kind.UINT, 1), b"b": [{2: True}], UUID(int=3): None})
    async with open_client() as client:
        await client.broker.send(ORDERS, [Message(body=body)])
        (got,) = await client.get()

    told = {"a": 1, "b'b'": [{"2": True}], "00000000-0000-0000-0000-000000000003": None}
    assert json.loads(got.body or b"") == told


@given(amqp_values())
def test_each_value_of_amqp_has_a_text(value: Any) -> None:
    for body in (ValueBody(value), SequenceBody(((value,),))):
        assert isinstance(body_bytes(Message(body=body), strict=False), bytes)


async def test_service_bus_gets_what_is_put(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        await client.put("a")
        async with client.broker.open_receiver(ORDERS) as receiver:
            (delivery,) = await receiver.receive(1)
            assert delivery.message.body == b"a"
            await receiver.settle(delivery, Complete())


@pytest.mark.parametrize(
    ("status", "refused"), [(EntityStatus.DISABLED, True), (EntityStatus.ACTIVE, False)]
)
async def test_a_disabled_queue_says_so(
    status: EntityStatus, refused: bool, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        await client.broker.update_queue(ORDERS, QueueProperties(status=status))
        response = await client.send(build_request(storage.GetMessages(queue="orders")))

        assert code(response) == ("QueueDisabled" if refused else None)


# --- the answers' headers


async def test_every_answer_says_of_which_request_it_is(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        request = build_request(storage.GetMetadata(queue="nowhere"))
        own = Headers((*request.headers.items, ("x-ms-client-request-id", "mine")))
        response = await client.send(attrs.evolve(request, headers=own))

        assert response.status == 404
        assert code(response) == "QueueNotFound"
        assert response.headers.get("x-ms-client-request-id") == "mine"
        assert response.headers.get("x-ms-version") == client.version
        request_id = response.headers.get("x-ms-request-id")
        assert f"RequestId:{request_id}\nTime:2026-01-01T".encode() in response.body


async def test_a_refusal_before_a_request_is_parsed_has_the_service_s_form(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        response = client.frontend.refuse(414, "The request's target is too long.")

        assert (response.status, code(response)) == (414, "InvalidInput")
        assert b"too long" in response.body


# --- trouble


@attrs.define(eq=False)
class Failing:
    """A broker whose sends end as the test says, one after the other."""

    inner: Any
    ends: list[Exception | None]
    ids: list[object] = attrs.field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def send_diverting(self, entity: EntityPath, messages: list[Message]) -> AcceptedBy:
        await trio.lowlevel.checkpoint()
        self.ids += [message.message_id for message in messages]
        error = self.ends.pop(0) if self.ends else None
        if error is not None:
            raise error
        return AcceptedBy.BACKLOG


PUT = storage.PutMessage(queue="orders", body=b"x")


@pytest.mark.parametrize(
    "error", [Unavailable("down"), OutcomeUnknown("no answer"), Busy(retry_after=10)]
)
async def test_a_put_is_tried_again_until_it_is_taken(
    error: Exception, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True) as client:
        failing = Failing(client.broker, [error, error])
        client.frontend.operations.broker = failing  # type: ignore[assignment]
        response = await client.send(build_request(PUT))

        assert response.status == 201
        assert response.headers.get("X-Pairgate-Accepted-By") == "backlog"
        assert len(failing.ids) == 3
        assert len(set(failing.ids)) == 1


@pytest.mark.parametrize(
    ("ends", "found", "outcome"),
    [
        ([Unavailable("down")] * 99, "ServerBusy", "not-sent"),
        ([OutcomeUnknown("?"), *[Unavailable("down")] * 99], "OperationTimedOut", "unknown"),
        ([Busy(retry_after=100)], "ServerBusy", "not-sent"),
        ([OutcomeUnknown("?"), EntityNotFound("gone")], "OperationTimedOut", "unknown"),
    ],
)
async def test_a_put_that_nobody_takes_is_answered_in_time(
    ends: list[Exception], found: str, outcome: str, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True) as client:
        client.frontend.operations.broker = Failing(client.broker, list(ends))  # type: ignore[assignment]
        begun = trio.current_time()
        response = await client.send(build_request(PUT))

        assert code(response) == found
        assert response.headers.get("X-Pairgate-Outcome") == outcome
        assert trio.current_time() - begun <= 50


async def test_the_client_s_own_time_is_kept(autojump_clock: MockClock) -> None:
    async with open_client(leased=True) as client:
        failing = Failing(client.broker, [Unavailable("down")] * 99)
        client.frontend.operations.broker = failing  # type: ignore[assignment]
        request = build_request(PUT)
        begun = trio.current_time()
        await client.send(attrs.evolve(request, target=f"{request.target}?timeout=3"))

        assert trio.current_time() - begun <= 3


@pytest.mark.parametrize(("retry_after", "tries"), [(0.9, 2), (1.1, 1)])
async def test_no_try_begins_with_too_little_time(
    retry_after: float, tries: int, autojump_clock: MockClock
) -> None:
    """
    A try that is cut off would make the outcome unknown, while it is certain that nothing was sent.
    """
    async with open_client(leased=True) as client:
        failing = Failing(client.broker, [Busy(retry_after=retry_after)] * 99)
        client.frontend.operations.broker = failing  # type: ignore[assignment]
        request = build_request(PUT)
        response = await client.send(attrs.evolve(request, target=f"{request.target}?timeout=6"))

        assert len(failing.ids) == tries
        assert response.headers.get("X-Pairgate-Outcome") == "not-sent"


async def test_at_the_end_nothing_is_tried_again(autojump_clock: MockClock) -> None:
    async with open_client(leased=True) as client:
        failing = Failing(client.broker, [Unavailable("down")] * 99)
        client.frontend.operations.broker = failing  # type: ignore[assignment]
        client.frontend.ending.set()
        assert (await client.send(build_request(PUT))).status == 503
        assert len(failing.ids) == 1


@attrs.define(eq=False)
class Away:
    """A pair whose primary is down: it accepts sends, and refuses all other operations."""

    inner: Any
    error: Exception | None  # None: it hangs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def inspect(self, entity: EntityPath) -> None:
        if self.error is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        raise self.error


@pytest.mark.parametrize("error", [None, Unavailable("down"), OutcomeUnknown("?"), Busy()])
async def test_a_stored_policy_and_a_page_s_origin_are_good_in_an_outage(
    error: Exception | None, autojump_clock: MockClock
) -> None:
    async with open_client(paired=True) as client:
        policies = (storage.StoredPolicy(id="p", permission="a", expiry="2027-01-01"),)
        await client.do(storage.SetAcl(queue="orders", policies=policies))
        rule = storage.CorsRule(origins="*", methods="POST")
        wish = storage.ServiceProperties(cors=(rule,))
        await client.do(storage.SetServiceProperties(properties=wish))

        async def put() -> Response:
            values = {"sv": "2026-10-06", "si": "p"}
            sig = build_sas(values, account="contoso", queue="orders", key=KEY)
            request = build_request(storage.PutMessage(queue="orders", body=b"x"))
            target = f"{request.target}?{urlencode({**values, 'sig': sig})}"
            return await client.ask("POST", target, request.body, Origin="https://a.example")

        assert (await put()).status == 201
        away: Any = Away(client.broker, error)
        client.frontend.notes = attrs.evolve(client.frontend.notes, broker=away)
        begun = trio.current_time()
        response = await put()

        assert response.status == 201
        assert response.headers.get("Access-Control-Allow-Origin") == "*"
        assert trio.current_time() - begun <= 2
        assert (await client.broker.inspect(ORDERS)).active == 2
        client.frontend.notes = LastNotes(away)
        assert (await put()).status == 503


# --- through a pair


async def test_a_message_that_a_pair_took_is_found_by_its_receipt_too(
    autojump_clock: MockClock,
) -> None:
    async with open_client(paired=True) as client:
        gone, kept, later = await client.put("a", "b", "c")
        await client.delete(gone)
        changed = await client.update(later, 60, "other")
        (got,) = await client.get(limit=32)
        assert (got.message_id, got.body) == (kept.message_id, b"b")
        with pytest.raises(LockLost):
            await client.delete(kept)
        with pytest.raises(LockLost):
            await client.delete(later)
        await client.delete(changed)
        with pytest.raises(MessageNotFound):
            await client.delete(changed)


async def test_a_message_that_a_pair_hides_from_the_start_can_be_deleted_until_it_shows(
    autojump_clock: MockClock,
) -> None:
    async with open_client(paired=True) as client:
        gone, kept = [(await client.put(text, hidden=60))[0] for text in "ab"]
        await client.delete(gone)
        await trio.sleep(61)
        (got,) = await client.get(limit=32)
        assert got.message_id == kept.message_id


# --- over locks alone


async def test_over_locks_messages_are_hidden_for_as_long_as_was_said(
    autojump_clock: MockClock,
) -> None:
    async with open_client(leased=True) as client:
        await client.put("a")
        (got,) = await client.get(hidden=200)  # several locks
        await trio.sleep(190)
        assert await client.get() == []
        await trio.sleep(11)
        (again,) = await client.get(hidden=5)
        assert (again.message_id, again.dequeues) == (got.message_id, 2)
        with pytest.raises(LockLost):
            await client.delete(got)
        longer = await client.update(again, 100)
        with pytest.raises(LockLost):
            await client.delete(again)
        await trio.sleep(50)
        await client.delete(longer)
        assert (await client.broker.inspect(ORDERS)).active == 0


async def test_over_locks_clear_deletes_what_is_hidden_here_too(autojump_clock: MockClock) -> None:
    async with open_client(leased=True) as client:
        await client.put("a", "b")
        (got,) = await client.get(hidden=200)
        await client.do(storage.ClearMessages(queue="orders"))

        assert (await client.broker.inspect(ORDERS)).active == 0
        with pytest.raises(MessageNotFound):
            await client.delete(got)


async def test_over_locks_clear_fails_as_long_as_somebody_else_has_a_message(
    autojump_clock: MockClock,
) -> None:
    async with open_client(leased=True) as client:
        await client.put("a", "b")
        async with client.broker.open_receiver(ORDERS) as receiver:
            await receiver.receive(1)
            clear = build_request(storage.ClearMessages(queue="orders"))
            response = await client.send(attrs.evolve(clear, target=f"{clear.target}?timeout=9"))

            assert (response.status, code(response)) == (500, "OperationTimedOut")
            assert (await client.broker.inspect(ORDERS)).active == 1
        assert (await client.send(clear)).status == 204


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_over_locks_messages_are_hidden_whatever_the_clock_says(
    ahead: float, autojump_clock: MockClock
) -> None:
    async with open_client(leased=True, ahead=ahead) as client:
        await client.put("a")
        (got,) = await client.get(hidden=200)  # several locks
        await trio.sleep(190)
        assert await client.get() == []
        await client.delete(got)
        assert (await client.broker.inspect(ORDERS)).active == 0


async def test_over_locks_a_message_may_be_hidden_from_the_start(autojump_clock: MockClock) -> None:
    async with open_client(leased=True) as client:
        (put,) = await client.put("a", hidden=60)
        assert await client.get() == []
        await trio.sleep(61)
        (got,) = await client.get()
        assert (got.message_id, got.inserted) == (put.message_id, put.inserted)
        assert got.expires == put.expires
        shown = await client.update(got, 0)
        assert len(await client.get()) == 1
        with pytest.raises(LockLost):
            await client.delete(shown)


async def test_over_locks_clear_and_peek_work_and_a_text_stays(autojump_clock: MockClock) -> None:
    async with open_client(leased=True) as client:
        (put, _) = await client.put("a", "b")
        (got,) = await client.get()
        found = await client.do(storage.PeekMessages(queue="orders", limit=32))
        assert isinstance(found, storage.Messages)
        assert [each.body for each in found.items] == [b"b"]
        with pytest.raises(NotSupported):
            await client.update(got, 1, "other")
        with pytest.raises(LockLost):
            await client.delete(put)  # the receipt names no message
        await client.delete(got)
        await client.do(storage.ClearMessages(queue="orders"))
        assert (await client.broker.inspect(ORDERS)).active == 0


@pytest.mark.parametrize("leased", [False, True])
async def test_a_message_is_given_back_by_an_update_without_a_body(
    leased: bool, autojump_clock: MockClock
) -> None:
    """As the Functions host does it after each failure, until it has the last attempt."""
    async with open_client(leased=leased) as client:
        await client.put("a")
        seen = []
        for _ in range(5):
            (got,) = await client.get()
            seen.append((got.body, got.dequeues))
            await client.update(got, 0)

        assert seen == [(b"a", number) for number in range(1, 6)]


async def test_hidden_messages_count_and_are_not_shown(autojump_clock: MockClock) -> None:
    """A scaler reads both: as many as the count says are left, and those that wait are shown."""
    async with open_client() as client:
        await client.put("a", "b")
        await client.get()
        shown = await client.do(storage.PeekMessages(queue="orders", limit=32))
        told = await client.do(storage.GetMetadata(queue="orders"))

        assert isinstance(shown, storage.Messages)
        assert isinstance(told, storage.QueueMetadata)
        assert [each.body for each in shown.items] == [b"b"]
        assert told.count == 2


async def test_metadata_is_what_headers_and_documents_can_say(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        made = storage.CreateQueue(queue="blue", metadata={"team": "\ufffe"})
        response = await client.send(build_request(made))
        assert code(response) == "InvalidMetadata"
        smuggled = write_notes(Notes(metadata={"a><b": "1"}))
        await client.broker.update_queue(ORDERS, QueueProperties(user_metadata=smuggled))
        told = await client.do(storage.GetMetadata(queue="orders"))
        assert told == storage.QueueMetadata()


async def test_a_list_says_any_prefix(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        found = await client.do(storage.ListQueues(prefix="\x01"))
        assert found == storage.QueueList()


@pytest.mark.parametrize("field", ["origins", "headers", "exposed"])
async def test_a_rule_has_what_a_header_can_say(field: str, autojump_clock: MockClock) -> None:
    async with open_client() as client:
        rule = attrs.evolve(storage.CorsRule(origins="*", methods="GET"), **{field: "a\nb"})
        wish = storage.SetServiceProperties(properties=storage.ServiceProperties(cors=(rule,)))
        response = await client.send(build_request(wish))
        assert code(response) == "InvalidXmlNodeValue"


@pytest.mark.parametrize("field", ["start", "expiry"])
async def test_a_stored_policy_has_times(field: str, autojump_clock: MockClock) -> None:
    async with open_client() as client:
        policy = attrs.evolve(storage.StoredPolicy(id="p"), **{field: "soon"})
        response = await client.send(
            build_request(storage.SetAcl(queue="orders", policies=(policy,)))
        )
        assert code(response) == "InvalidXmlNodeValue"


# --- the effect of a queue's metadata on its gets


async def settle_metadata(client: Client, **metadata: str) -> None:
    await client.do(storage.SetMetadata(queue="orders", metadata=metadata))


async def test_a_queue_has_its_own_default_timeout(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        await client.put("a")
        await settle_metadata(client, DefaultTimeout="5")
        unsaid = storage.GetMessages(queue="orders")
        found = await client.do(unsaid)
        assert isinstance(found, storage.Messages)
        assert found.items[0].visible == client.clock() + timedelta(seconds=5)
        await trio.sleep(6)

        (got,) = await client.get(hidden=9)
        assert got.visible == client.clock() + timedelta(seconds=9)


@pytest.mark.parametrize("leased", [False, True])
async def test_poison_goes_to_a_queue_of_its_own_and_says_why(
    leased: bool, autojump_clock: MockClock
) -> None:
    async with open_client(leased=leased) as client:
        await settle_metadata(client, poisonthreshold="2")
        await client.put("bad")
        for count in (1, 2):
            (got,) = await client.get(hidden=1)
            assert (got.body, got.dequeues) == (b"bad", count)
            await trio.sleep(2)

        assert await client.get() == []
        found = await client.do(storage.GetMessages(queue="orders-poison"))
        assert isinstance(found, storage.Messages)
        (moved,) = found.items
        assert (moved.body, moved.dequeues, moved.expires) == (b"bad", 1, None)
        assert moved.reason == "PoisonThresholdExceeded"
        assert moved.description == "orders: dequeued 2 times and not removed; 2 expected."
        assert (await client.broker.inspect(ORDERS)).active == 0


async def test_poison_that_can_not_go_is_served_from_others_too(
    autojump_clock: MockClock,
) -> None:
    async with open_client(leased=True) as client:
        await client.broker.create_queue(
            EntityPath("orders-poison"), QueueProperties(status=EntityStatus.SEND_DISABLED)
        )
        await settle_metadata(client, poisonthreshold="1")
        await client.put("bad")
        for count in (1, 2, 3):
            (got,) = await client.get(hidden=1)
            assert got.dequeues == count
            await trio.sleep(2)


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("defaulttimeout", "0", "from 1 to 604800"),
        ("DefaultTimeout", "604801", "from 1 to 604800"),
        ("defaulttimeout", "30s", "from 1 to 604800"),
        ("poisonthreshold", "", "from 1 to 2147483647"),
        ("poisonthreshold", "-1", "from 1 to 2147483647"),
    ],
)
async def test_a_bad_setting_is_refused_by_its_key_and_limit(
    key: str, value: str, limit: str, autojump_clock: MockClock
) -> None:
    async with open_client() as client:
        for wish in (
            storage.SetMetadata(queue="orders", metadata={key: value}),
            storage.CreateQueue(queue="other", metadata={key: value}),
        ):
            response = await client.send(build_request(wish))
            assert code(response) == "InvalidMetadata"
            assert f"{key}: a number {limit} is expected" in response.body.decode()


async def test_the_queue_for_poison_has_a_name_of_the_service(autojump_clock: MockClock) -> None:
    async with open_client() as client:
        for length, expected in ((56, None), (57, "InvalidMetadata")):
            wish = storage.CreateQueue(queue="a" * length, metadata={"poisonthreshold": "5"})
            assert code(await client.send(build_request(wish))) == expected


async def test_a_setting_that_came_by_another_way_and_is_bad_is_none(
    autojump_clock: MockClock,
) -> None:
    async with open_client() as client:
        text = write_notes(Notes(metadata={"poisonthreshold": "none", "defaulttimeout": "0"}))
        await client.broker.update_queue(ORDERS, QueueProperties(user_metadata=text))
        await client.put("a")

        found = await client.do(storage.GetMessages(queue="orders"))
        assert isinstance(found, storage.Messages)
        assert found.items[0].visible == client.clock() + timedelta(seconds=30)


async def test_poison_that_is_sent_and_not_removed_is_in_both_queues(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_client(leased=True) as client:
        await settle_metadata(client, poisonthreshold="1")
        (put,) = await client.put("bad")
        await client.get(hidden=1)
        await trio.sleep(2)

        async def fail(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise OutcomeUnknown("cut")

        with monkeypatch.context() as patch:
            patch.setattr(LeasedVisibility, "remove", fail)
            assert await client.get(hidden=1) == []
        await trio.sleep(2)

        for queue in ("orders", "orders-poison"):
            found = await client.do(storage.PeekMessages(queue=queue))
            assert isinstance(found, storage.Messages)
            assert [each.message_id for each in found.items] == [put.message_id]


async def test_a_client_that_may_not_see_the_settings_gets_messages_all_the_same(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_client(leased=True) as client:
        await client.put("a")

        async def refuse(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise NotAuthorized("Manage is needed")

        monkeypatch.setattr(client.broker, "inspect", refuse)
        (got,) = await client.get()
        assert got.body == b"a"
