"""
Links that browse a session. The retired Java SDK attaches one for each session that it lists
(azure-service-bus-java 1.2.18: `SessionBrowser.java` 57 to 59, `CoreMessageReceiver.java` 414 to
440); beside it, it peeks and reads the state by requests, gives no credit (921), and detaches.
"""

import pytest
import trio

from gateway.domain.entity import QueueProperties
from gateway.domain.message import Kind, Message, Typed
from gateway.wire.amqp import events as amqp
from gateway.wire.amqp.management import operations as ops
from gateway.wire.amqp.servicebus.deliveries import decode_delivery
from tests.frontends.amqp.management import ask, reply_to
from tests.frontends.amqp.sessions import SQ, asks, holds, source

LOCKED_UNTIL = "com.microsoft:locked-until-utc"


@pytest.fixture
async def sessions(house):
    await house.broker.create_queue(SQ, QueueProperties(requires_session=True))
    await house.broker.send(SQ, [Message(message_id=each, session_id=each) for each in "ab"])
    return house


def mode(*, browses):
    """The properties of the attach of a session's receiver: both keys are always there."""
    timeout = Typed(Kind.UINT, 59_800)
    return {"com.microsoft:timeout": timeout, "com.microsoft:peek-mode": browses}


async def browse(sdk, wanted="a"):
    return await holds(
        sdk,
        wanted,
        sender_settles=amqp.SenderSettles.UNSETTLED,
        properties=mode(browses=True),
    )


async def test_a_browsed_session_is_free(sessions, sdk, autojump_clock):
    _, answer = await browse(sdk)
    again, _ = await browse(sdk)
    consumer, _ = await holds(await sessions.client(), "a")

    assert answer.source == source("a")
    assert LOCKED_UNTIL not in answer.properties
    assert again != consumer


async def test_a_session_that_is_held_can_be_browsed(sessions, sdk, autojump_clock):
    other = await sessions.client()
    await holds(other, "a", properties=mode(browses=False))
    await ask(other, ops.SetSessionState(session_id="a", state=b"half"), "sq")

    await browse(sdk)
    peeked = await ask(sdk, ops.Peek(from_sequence=1, limit=1, session_id="a"), "sq")
    read = await ask(sdk, ops.GetSessionState(session_id="a"), "sq")

    assert [decode_delivery(each.payload).message.message_id for each in peeked.messages] == ["a"]
    assert read.state == b"half"


async def test_a_receiver_that_does_not_browse_holds_its_session(sessions, sdk, autojump_clock):
    _, answer = await holds(sdk, "a", properties=mode(browses=False))

    error = await (await sessions.client()).refusal(**asks("a"))

    assert LOCKED_UNTIL in answer.properties
    assert error.condition == "com.microsoft:session-cannot-be-locked"


@pytest.mark.parametrize(
    "operation",
    [
        ops.SetSessionState(session_id="a", state=b"1"),
        ops.RenewSession(session_id="a"),
        ops.GetSessionState(session_id="b"),
    ],
    ids=["set", "renew", "read another"],
)
async def test_a_browsed_session_is_read_alone(sessions, sdk, operation, autojump_clock):
    await browse(sdk)

    reply = await reply_to(sdk, operation, "sq")

    assert reply.condition == "com.microsoft:session-lock-lost"


async def test_a_state_is_not_read_when_its_link_is_gone(sessions, sdk, autojump_clock):
    link, _ = await browse(sdk)
    sdk.engine.detach(link)

    reply = await reply_to(sdk, ops.GetSessionState(session_id="a"), "sq")

    assert reply.condition == "com.microsoft:session-lock-lost"


async def test_a_link_that_browses_delivers_nothing(sessions, sdk, autojump_clock):
    link, _ = await browse(sdk)
    sdk.engine.grant(link, 10)
    sdk.engine.drain(link)
    await sdk.until(amqp.LinkDrained)
    await trio.sleep(1)

    assert sdk.engine.credit(link) == 0
    assert not [event for event in sdk.told if isinstance(event, amqp.TransferReceived)]


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        (asks(None), "amqp:not-allowed"),
        (asks("a", "orders"), "amqp:not-allowed"),
        (asks("a", "nothing"), "amqp:not-found"),
    ],
    ids=["any session", "no sessions", "no queue"],
)
async def test_a_link_that_can_browse_nothing_is_refused(
    sessions, sdk, asked, condition, autojump_clock
):
    error = await sdk.refusal(**asked, properties=mode(browses=True))

    assert error.condition == condition
