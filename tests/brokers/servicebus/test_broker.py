import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import attrs
import pytest
import trio

from gateway.brokers.servicebus.broker import ServiceBusRestBroker, ServiceBusRestOptions
from gateway.brokers.servicebus.peer import RestPeer
from gateway.brokers.servicebus.receiver import PollLimit
from gateway.capabilities import Polls, send_accepted_by
from gateway.config.kinds import BrokerDependencies, build
from gateway.domain import backlog
from gateway.domain.entity import EntityInfo, EntityPath, EntityStatus, QueueProperties
from gateway.domain.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    InvalidRequest,
    MessageTooLarge,
    NotAuthorized,
    NotSupported,
    OutcomeUnknown,
    Unavailable,
)
from gateway.domain.message import Abandon, AcceptedBy, DeadLetter, Delivery, Message
from gateway.domain.topics.topology import TopicInfo
from gateway.listening.process.process import MOST_POLLS
from gateway.listening.scaling.autoscaling import AutoscalingOptions
from gateway.net.listeners import PortOptions
from gateway.offering import required
from gateway.wire.amqp.message import encoded_size
from gateway.wire.http.messages import Headers, Request, Response
from gateway.wire.servicebus import answers as servicebus_answers
from gateway.wire.servicebus import atom_answers, atom_operations, operations
from gateway.wire.servicebus import rest as servicebus_rest
from gateway.wire.servicebus.errors import PAIRGATE, build_error, build_refusal
from tests.brokers.servicebus.broker import tokens
from tests.harness.clocks import VirtualClock

ORDERS = EntityPath("orders")
BACKLOG = backlog.queue_name("east", 0)
OURS = Headers.of([PAIRGATE])
START = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define
class Script:
    """An HTTP client that gives prepared answers, and keeps the requests in `requests`."""

    answers: list[Response | BrokerError | Callable[[Request], Response]]
    requests: list[Request] = attrs.field(factory=list)

    async def request(self, request: Request, max_body: int | None = None) -> Response:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrokerError):
            raise answer
        return answer if isinstance(answer, Response) else answer(request)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.target.partition('?')[0]}" for request in self.requests]


def broker_of(script: Script, **options: int) -> ServiceBusRestBroker:
    return ServiceBusRestBroker(
        client=script,
        polls=script,
        tokens=tokens(),
        options=ServiceBusRestOptions(key="secret", **options),
        clock=VirtualClock(),
    )


def described(
    status: EntityStatus = EntityStatus.ACTIVE,
    *,
    entity: EntityPath = ORDERS,
    max_message_size: int | None = None,
) -> Response:
    info = EntityInfo(
        path=entity,
        properties=QueueProperties(status=status),
        max_message_size=max_message_size,
    )
    response = atom_answers.build_response(
        atom_operations.GetEntity(entity=entity), info, "http://east"
    )
    return attrs.evolve(response, headers=Headers())


NO_PAIRGATE = Response(status=405)
PROBED = Response(status=200, headers=OURS)
SENT = Response(status=201, headers=OURS)
CREATED = Response(status=201)


async def test_a_namespace_that_answers_is_asked_once():
    script = Script([PROBED, SENT])
    broker = broker_of(script)
    await broker.send(ORDERS, [Message()])
    await broker.send(ORDERS, [Message()])
    post = "POST /orders/messages"

    assert script.asked == ["OPTIONS /orders/messages", post, post]


async def test_a_namespace_that_answers_is_asked_again_after_trouble():
    script = Script([PROBED, OutcomeUnknown("cut"), PROBED, SENT])
    broker = broker_of(script)
    with pytest.raises(OutcomeUnknown):
        await broker.send(ORDERS, [Message()])
    await broker.send(ORDERS, [Message()])

    assert [line.partition(" ")[0] for line in script.asked] == [
        "OPTIONS",
        "POST",
        "OPTIONS",
        "POST",
    ]


async def test_a_refusal_says_too_that_a_pairgate_answers():
    script = Script([build_error(NotAuthorized("no")), SENT])
    broker = broker_of(script)
    await broker.send(ORDERS, [Message()])

    assert script.requests[-1].headers.get("Content-Type") == "application/vnd.pairgate.amqp"


@pytest.mark.parametrize("answer", [OutcomeUnknown("cut"), Response(status=502)])
async def test_a_question_that_gets_no_answer_has_sent_nothing(answer):
    broker = broker_of(Script([answer]))

    with pytest.raises(Unavailable):
        await broker.send(ORDERS, [Message()])


async def test_an_accepted_send_says_what_the_other_gateway_accepted_it_by():
    accepted_by = Headers.of([PAIRGATE, ("X-Pairgate-Accepted-By", "backlog")])
    broker = broker_of(Script([PROBED, Response(status=201, headers=accepted_by)]))

    assert await send_accepted_by(broker, ORDERS, [Message()]) is AcceptedBy.BACKLOG


@pytest.mark.parametrize("error", [EntityNotFound("gone"), OutcomeUnknown("late"), Unavailable("")])
async def test_the_error_of_the_other_gateway_is_raised_as_it_was(error):
    broker = broker_of(Script([PROBED, build_error(error)]))

    with pytest.raises(type(error)):
        await broker.send(ORDERS, [Message()])


async def test_a_message_that_could_not_be_received_again_is_not_sent():
    script = Script([PROBED, CREATED])
    broker = broker_of(script, max_message_size=64 * 1024)

    with pytest.raises(MessageTooLarge, match=r"at most 65536 \(max_message_size\)"):
        await broker.send(
            ORDERS, [Message(), Message(body=bytes(65_000), properties={"a": "b" * 600})]
        )

    assert script.requests == []


async def test_a_backlog_queue_takes_the_envelope_on_top():
    broker = broker_of(Script([PROBED, SENT]), max_message_size=64 * 1024)
    around = encoded_size(Message(body=bytes(64 * 1024))) - 64 * 1024
    largest = 64 * 1024 + 4096 - around

    await broker.send(BACKLOG, [Message(body=bytes(largest))])
    with pytest.raises(MessageTooLarge, match="at most 69632"):
        await broker.send(BACKLOG, [Message(body=bytes(largest + 1))])


@pytest.mark.parametrize(
    ("entity", "there", "told"),
    [
        (ORDERS, None, None),
        (ORDERS, 2048, 64),
        (ORDERS, 32, 32),
        (BACKLOG, 2048, 68),
    ],
)
async def test_the_largest_message_of_an_entity_is_one_that_can_be_received(entity, there, told):
    size = None if there is None else there * 1024
    description = described(entity=entity, max_message_size=size)
    broker = broker_of(Script([description]), max_message_size=64 * 1024)

    assert (await broker.inspect(entity)).max_message_size == (told and told * 1024)


@pytest.mark.parametrize(("there", "told"), [(32, 32), (128, 64)])
async def test_the_largest_message_of_a_topic_is_one_that_can_be_received(there, told):
    info = TopicInfo(path=ORDERS, max_message_size=there * 1024)
    description = atom_answers.build_response(
        atom_operations.GetEntity(entity=ORDERS), info, "http://east"
    )
    broker = broker_of(Script([description]), max_message_size=64 * 1024)

    assert (await broker.inspect_topic(ORDERS)).max_message_size == told * 1024


async def test_a_part_that_fails_after_an_accepted_one_leaves_the_batch_unknown():
    broker = broker_of(Script([NO_PAIRGATE, CREATED, Response(status=413)]))
    binary = [Message(body=b"\xff"), Message(body=b"\xff")]

    with pytest.raises(OutcomeUnknown, match="1 of 2"):
        await broker.send(ORDERS, binary)


async def test_a_first_part_that_is_refused_leaves_nothing_sent():
    broker = broker_of(Script([NO_PAIRGATE, Response(status=413)]))

    with pytest.raises(MessageTooLarge):
        await broker.send(ORDERS, [Message(body=b"\xff"), Message(body=b"\xff")])


async def test_a_batch_with_a_part_that_rest_cannot_carry_is_refused_before_anything_is_sent():
    script = Script([NO_PAIRGATE, CREATED])
    broker = broker_of(script)

    with pytest.raises(NotSupported):
        await broker.send(ORDERS, [Message(body=b"\xff"), Message(properties={"x": None})])
    assert script.asked == ["OPTIONS /orders/messages"]


async def test_a_batch_of_texts_goes_at_once_where_no_pairgate_answers():
    script = Script([NO_PAIRGATE, CREATED])
    await broker_of(script).send(ORDERS, [Message(body=b"one"), Message(body=b"two")])

    assert len(script.requests) == 2
    assert script.requests[-1].headers.get("Content-Type").endswith("servicebus.json")


async def test_a_large_batch_goes_in_several_requests_in_its_order():
    script = Script([PROBED, SENT])
    messages = [Message(message_id=str(n), body=b"x" * 800_000) for n in range(5)]
    await broker_of(script).send(ORDERS, messages)

    sent = [servicebus_rest.parse_request(request).messages for request in script.requests[1:]]
    assert [len(part) for part in sent] == [2, 2, 1]
    assert [message.message_id for part in sent for message in part] == list("01234")


async def test_a_refused_token_is_renewed_once(autojump_clock):
    script = Script([PROBED, Response(status=401), SENT])
    broker = broker_of(script)
    await broker.probe(ORDERS)
    await trio.sleep(1.0)
    await broker.send(ORDERS, [Message()])

    signed = [request.headers.get("Authorization") for request in script.requests]
    assert signed[0] == signed[1] != signed[2]


async def test_a_token_that_stays_refused_is_not_authorized(autojump_clock):
    script = Script(
        [PROBED, attrs.evolve(build_refusal(401, "InvalidSignature"), headers=Headers())]
    )
    broker = broker_of(script)
    await broker.probe(ORDERS)
    await trio.sleep(1.0)

    with pytest.raises(NotAuthorized):
        await broker.send(ORDERS, [Message()])
    assert len(script.requests) == 3


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 503])
async def test_a_proxy_s_page_is_no_sign_that_the_namespace_is_another(
    status: int, autojump_clock: trio.abc.Clock
) -> None:
    page = Response(status=status, headers=Headers.of({"Retry-After": "9"}), body=b"<html>no")
    script = Script([PROBED, page])
    broker = broker_of(script)
    await broker.probe(ORDERS)
    with pytest.raises(OutcomeUnknown):
        await broker.send(ORDERS, [Message()])
    with pytest.raises(Unavailable, match=f"HTTP status {status}"):
        await broker.send(ORDERS, [Message(session_id="s")])
    script.answers = [PROBED, SENT]

    await broker.send(ORDERS, [Message(session_id="s")])


async def test_a_token_is_kept_for_most_of_its_life():
    now = [START]
    source = tokens(lambda: now[0])
    first = await source.of("orders")
    now[0] += timedelta(seconds=2879)
    kept = await source.of("orders")
    now[0] += timedelta(seconds=2)
    renewed = await source.of("orders")

    assert first == kept != renewed


async def test_a_clock_that_was_set_back_makes_a_new_token():
    now = [START]
    source = tokens(lambda: now[0])
    first = await source.of("orders")
    now[0] -= timedelta(days=1)

    assert await source.of("orders") != first


def test_the_key_is_never_shown():
    assert "secret" not in repr(tokens()) + repr(ServiceBusRestOptions(key="secret"))


async def test_a_probe_of_a_pairgate_asks_no_more():
    script = Script([PROBED])
    await broker_of(script).probe(ORDERS)

    assert script.asked == ["HEAD /orders/messages"]


async def test_a_probe_says_what_the_other_gateway_says():
    refusal = attrs.evolve(build_error(EntityDisabled("off")), body=b"")

    with pytest.raises(EntityDisabled):
        await broker_of(Script([refusal])).probe(ORDERS)


async def test_a_probe_elsewhere_reads_the_description():
    await broker_of(Script([NO_PAIRGATE, described()])).probe(ORDERS)
    disabled = broker_of(Script([NO_PAIRGATE, described(EntityStatus.SEND_DISABLED)]))

    with pytest.raises(EntityDisabled):
        await disabled.probe(ORDERS)


def unauthorized(text: str) -> Response:
    body = f"<Error><Code>401</Code><Detail>{text}</Detail></Error>"
    return Response(status=401, body=body.encode())


async def test_without_manage_a_probe_elsewhere_proves_that_the_namespace_answers():
    script = Script([NO_PAIRGATE, unauthorized("Manage,EntityRead claims required")])

    await broker_of(script).probe(ORDERS)

    assert script.asked[-1] == "GET /orders"


async def test_a_wrong_key_is_told_from_a_missing_right():
    script = Script([NO_PAIRGATE, unauthorized("40103: Invalid authorization token signature")])

    with pytest.raises(NotAuthorized):
        await broker_of(script).probe(ORDERS)


async def test_operations_of_a_pairgate_alone_are_not_asked_of_others():
    broker = broker_of(Script([NO_PAIRGATE]))
    with pytest.raises(NotSupported, match="peek"):
        await broker.peek(ORDERS)
    delivery = Delivery(message=Message(), sequence_number=1, lock_token="t")

    async with broker.open_receiver(ORDERS) as receiver:
        with pytest.raises(NotSupported, match="dead-letter"):
            await receiver.settle(delivery, DeadLetter(reason="bad"))


@pytest.mark.parametrize(
    "settlement",
    [Abandon(properties={"n": 1}), DeadLetter(reason="bad", properties={"n": 1})],
)
async def test_a_message_is_not_changed_over_rest(settlement):
    delivery = Delivery(message=Message(), sequence_number=1, lock_token="t")

    async with broker_of(Script([])).open_receiver(ORDERS) as receiver:
        with pytest.raises(NotSupported, match="change a message"):
            await receiver.settle(delivery, settlement)


def delivering(request: Request, until: datetime = START + timedelta(60)) -> Response:
    operation = servicebus_rest.parse_request(request)
    if not isinstance(operation, operations.ReceiveMessages):
        return Response(status=200, headers=OURS)
    delivery = Delivery(message=Message(), sequence_number=1, lock_token="t", locked_until=until)
    answer = operations.Delivered(deliveries=(delivery,))
    return servicebus_answers.build_response(operation, answer, "http://east")


async def test_a_renewal_without_a_date_after_an_absurd_one_lasts_as_long_as_a_usual_lock(
    autojump_clock,
):
    last = partial(delivering, until=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    async with broker_of(Script([PROBED, last])).open_receiver(ORDERS) as receiver:
        [delivery] = await receiver.receive(1)
        await trio.sleep(2)
        until = await receiver.renew(delivery)

    assert until.year < 9999


async def test_leaving_a_receiver_abandons_what_it_holds():
    script = Script([PROBED, delivering])
    async with broker_of(script).open_receiver(ORDERS) as receiver:
        await receiver.receive(1)

    assert script.asked[-1] == "PUT /orders/messages/1/t"


async def test_leaving_a_receiver_takes_no_longer_than_five_seconds(autojump_clock):
    @attrs.define
    class Hanging(Script):
        async def request(self, request: Request, max_body: int | None = None) -> Response:
            if request.method == "PUT":
                await trio.sleep_forever()
            return await Script.request(self, request, max_body)

    began = trio.current_time()
    async with broker_of(Hanging([PROBED, delivering])).open_receiver(ORDERS) as receiver:
        await receiver.receive(1)

    assert trio.current_time() - began == 5.0


@attrs.define
class Slow(Script):
    """Each answer comes a second and a half after its request."""

    async def request(self, request: Request, max_body: int | None = None) -> Response:
        response = await Script.request(self, request, max_body)
        await trio.sleep(1.5)
        return response


async def test_receives_with_short_deadlines_get_what_a_slow_namespace_has(autojump_clock):
    """Each of them would otherwise begin with the question whether it is a Pairgate."""
    script = Slow([PROBED, delivering])
    found = []
    async with broker_of(script).open_receiver(ORDERS) as receiver:
        for _ in range(4):
            with trio.move_on_after(1):
                found += await receiver.receive(1)
                break

    assert [each.lock_token for each in found] == ["t"]
    assert script.asked[:2] == ["OPTIONS /orders/messages", "POST /orders/messages/head"]
    assert len(script.asked) == 3, "the third abandons the message, at the end"


async def test_a_message_of_an_answer_that_came_too_late_is_released_uncounted(autojump_clock):
    script = Slow([PROBED, delivering])
    async with broker_of(script).open_receiver(ORDERS) as receiver:
        with trio.move_on_after(1):
            await receiver.receive(1)
        await trio.sleep(10)
        released = script.requests[-1]

    assert servicebus_rest.parse_request(released).settlement == Abandon(delivered=False)
    assert len(script.asked) == 3, "the end of the receiver finds nothing to release"


async def test_an_empty_poll_is_followed_by_the_next(autojump_clock):
    began = trio.current_time()
    nothing = Response(status=204, headers=OURS)
    script = Script([PROBED, nothing, nothing, delivering])
    async with broker_of(script).open_receiver(ORDERS) as receiver:
        found = await receiver.receive(1)

    assert len(found) == 1
    # A namespace that doesn't wait isn't polled in a tight loop.
    assert trio.current_time() - began == 2.0


async def test_a_poll_is_one_request():
    nothing = Response(status=204, headers=OURS)
    script = Script([PROBED, nothing, delivering])
    async with broker_of(script).open_receiver(ORDERS) as receiver:
        polls = required(receiver, Polls)
        first, second = await polls.poll(1), await polls.poll(1)

    assert (len(first), len(second)) == (0, 1)


@attrs.define
class Waiting(Script):
    """Has no messages, and says so when the time is over that the client wants to wait."""

    cut: int = 0  # requests that were cancelled

    async def request(self, request: Request, max_body: int | None = None) -> Response:
        if request.method != "OPTIONS":
            self.cut += 1
            await trio.sleep(float(request.target.partition("timeout=")[2].partition("&")[0]))
            self.cut -= 1
        return await Script.request(self, request, max_body)


@pytest.mark.parametrize(
    ("server", "seconds", "waits"),
    [
        (PROBED, 10.0, "9.500"),
        (PROBED, 1.0, "0.500"),
        (PROBED, 0.3, "0.000"),
        (NO_PAIRGATE, 10.0, "9"),
        (NO_PAIRGATE, 1.0, "0"),
        (PROBED, 100.0, "60.000"),
    ],
)
async def test_the_namespace_answers_before_the_caller_stops_waiting(
    server, seconds, waits, autojump_clock
):
    """Else a message in that answer would be locked for nobody."""
    script = Waiting([server, Response(status=204, headers=server.headers)])
    broker, began = broker_of(script), trio.current_time()
    async with broker.open_receiver(ORDERS) as receiver:
        with trio.move_on_after(seconds):
            await receiver.receive(1)

    _, first, *others = [request.target.partition("?timeout=")[2] for request in script.requests]
    assert trio.current_time() - began == seconds
    assert first == waits
    assert others == (["39.500"] if seconds == 100.0 else [])
    assert script.cut == 0


async def test_receives_beyond_those_that_may_wait_return_at_once(autojump_clock):
    nothing = Response(status=204, headers=OURS)
    broker = broker_of(Waiting([PROBED, nothing]), max_polls=2)
    lasted = []

    async def poll(entity: EntityPath) -> None:
        began = trio.current_time()
        async with broker.open_receiver(entity) as receiver:
            assert await required(receiver, Polls).poll(1) == ()
        lasted.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll, EntityPath("a"))
        nursery.start_soon(poll, EntityPath("b"))
        await trio.sleep(1.0)
        await poll(EntityPath("c"))
    await poll(EntityPath("c"))

    assert lasted == [0.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("mebibytes", "limit", "most"),
    [(1, 1, 2**20), (1, 100, 100 * 2**20), (16, 100, 128 * 2**20), (1000, 100, 1000 * 2**20)],
)
async def test_a_receive_has_room_for_its_largest_answer_and_for_no_other(
    mebibytes, limit, most, autojump_clock
):
    limits: list[int | None] = []

    class Limited(Script):
        async def request(self, request: Request, max_body: int | None = None) -> Response:
            limits.append(max_body)
            return await Script.request(self, request, max_body)

    broker = broker_of(
        Limited([PROBED, Response(status=204, headers=OURS)]), max_message_size=mebibytes * 2**20
    )
    async with broker.open_receiver(ORDERS) as receiver:
        await required(receiver, Polls).poll(limit)

    assert most <= limits[-1] <= most + limit * 16 * 1024


def test_all_receives_and_requests_have_fewer_connections_than_a_gateway_accepts_of_one_address():
    usual = ServiceBusRestOptions()
    process = attrs.evolve(usual, max_polls=MOST_POLLS)
    accepted = PortOptions().max_connections_per_peer

    def connections(options: ServiceBusRestOptions) -> int:
        return PollLimit(options.max_polls).connections + options.max_connections

    assert connections(usual) < accepted
    assert AutoscalingOptions().max_processes * connections(process) < accepted


@pytest.mark.parametrize(
    ("rest", "named"),
    [
        ("//east", "KEYNAME"),
        ("//sender:secret@east", "KEYNAME"),
        ("//sender@", "KEYNAME"),
        ("//sender@east:99999", "URL"),
        ("//sender@east/path", "after the port"),
        ("//sender@east", "key"),
    ],
)
def test_a_url_is_refused_by_its_part(rest, named):
    dependencies = BrokerDependencies(clock=VirtualClock(), rng=random.Random(0), observer=None)

    with pytest.raises(InvalidRequest, match=named) as caught:
        build(f"servicebus+http:{rest}", "east", dependencies)
    assert "secret" not in str(caught.value)


async def test_a_peer_signs_for_each_entity_by_itself():
    script = Script([Response(status=200, headers=OURS)])
    peer = RestPeer(ask=script.request, tokens=tokens())
    await peer.probe(EntityPath("a/$DeadLetterQueue"))

    assert "sr=http%3A%2F%2Feast%2Fa&" in script.requests[0].headers.get("Authorization")
