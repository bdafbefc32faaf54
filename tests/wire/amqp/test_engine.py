"""Two engines on an AMQP connection: each action of one side becomes an event of the other."""

import gc
import weakref

import pytest

from gateway.domain.message import symbol
from gateway.wire.amqp.events import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    Durability,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    Modified,
    NewLink,
    ReceiverSettles,
    Rejected,
    SenderSettles,
    SessionClosed,
    SessionOpened,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.sasl import OK, REFUSED, Credentials
from tests.wire.amqp.pair_of_engines import Pair, new_client, new_server, take_all

LOCK_LOST = AmqpError(
    condition="com.microsoft:message-lock-lost", description="gone", info={"why": 1}
)


@pytest.fixture
def pair():
    return Pair().open()


# --------------------------------------------------------------------------- connection


def test_the_peers_open_is_told_with_who_sasl_says_it_is():
    pair = Pair(client=new_client(Credentials(mechanism="PLAIN", user="key", password="secret")))

    pair.client.open(hostname="host", properties={"product": "p", "number": 7})
    events, _ = pair.pump()

    assert events == [
        ConnectionOpened(
            container_id="client",
            hostname="host",
            properties={"product": "p", "number": 7},
            mechanism="PLAIN",
            user="key",
        )
    ]


def test_a_server_opens_when_it_has_decided_to():
    pair = Pair()
    pair.client.open()
    pair.pump()

    _, before = pair.pump()
    pair.server.open(properties={"a": symbol("b")})
    _, (opened,) = pair.pump()

    assert before == []
    assert opened.container_id == "server"
    assert opened.properties == {"a": symbol("b")}


def test_a_peer_that_sasl_refuses_gets_its_outcome_and_no_amqp():
    pair = Pair(
        server=new_server(lambda credentials: OK if credentials.password == "right" else REFUSED)
    )
    pair.client = new_client(Credentials(mechanism="PLAIN", user="key", password="wrong"))

    pair.client.open()
    (told,), (asked,) = pair.pump()

    assert told.error.condition == asked.error.condition == "amqp:unauthorized-access"
    assert pair.server.finished
    assert pair.client.finished


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "MSSBCBS"])
def test_mechanisms_that_prove_nothing_are_decided_by_the_server(mechanism):
    asked = []
    pair = Pair(server=new_server(lambda credentials: asked.append(credentials) or OK))
    pair.client = new_client(Credentials(mechanism=mechanism))

    pair.client.open()
    ((opened), *_), _ = pair.pump()

    assert asked == [Credentials(mechanism=mechanism)]
    assert opened.mechanism == mechanism


def test_a_close_with_an_error_reaches_the_peer_and_ends_both(pair):
    pair.server.close(LOCK_LOST)
    at_server, at_client = pair.pump()

    assert at_client == [ConnectionClosed(error=LOCK_LOST)]
    assert at_server == [ConnectionClosed(error=None)]
    assert pair.client.finished
    assert pair.server.finished


def test_a_lost_stream_ends_the_connection_with_an_error(pair):
    pair.link()

    pair.server.feed_eof()

    (closed,) = pair.server.events()
    assert closed.error.condition == "amqp:connection:framing-error"


def test_a_call_after_the_end_does_nothing(pair):
    ours, theirs = pair.link()
    pair.client.close()
    pair.pump()

    pair.server.grant(theirs, 1)
    pair.server.detach(theirs)
    pair.server.close()
    pair.client.feed(b"garbage")
    pair.client.open()

    assert pair.client.send(ours, b"1", b"a") is None
    assert take_all(pair.client) == take_all(pair.server) == b""


def test_an_engine_that_is_dropped_frees_what_it_has():
    pair = Pair().open()
    pair.link()
    gone = weakref.ref(pair.server)

    del pair
    gc.collect()

    assert gone() is None


# --------------------------------------------------------------------------- time


def test_a_silent_peer_is_dropped_after_the_idle_time():
    pair = Pair(server=new_server(idle_timeout=10)).open()
    pair.server.tick(100)

    pair.server.tick(109.9)
    early = list(pair.server.events())
    pair.server.tick(110.1)
    (closed,) = pair.server.events()

    assert early == []
    assert closed.error.condition == "amqp:resource-limit-exceeded"


def test_a_peer_that_is_told_the_idle_time_keeps_the_connection_alive():
    pair = Pair(server=new_server(idle_timeout=10)).open()
    now, deadlines = 100.0, []
    for _ in range(20):
        deadlines += [pair.client.tick(now), pair.server.tick(now)]
        now = min(deadlines[-2:])
        assert pair.pump() == ([], [])

    assert now > 130


# --------------------------------------------------------------------------- sessions and links


def test_a_session_that_ends_detaches_its_links_first(pair):
    session = pair.client.begin()
    pair.link(session=session, name="a")
    pair.link(session=session, name="b", we_send=False)

    pair.client.end(session)
    events, _ = pair.pump()

    assert [type(event) for event in events] == [LinkDetached, LinkDetached, SessionClosed]


def test_an_attach_tells_everything_that_it_says(pair):
    source = Terminus(
        address="q/Subscriptions/s",
        durable=Durability.UNSETTLED_STATE,
        filters={"com.microsoft:session-filter": None, "other": symbol("x")},
        capabilities=("queue",),
    )

    _, attached = pair.attach(
        name="n",
        we_send=False,
        source=source,
        target=Terminus(dynamic=True),
        sender_settles=SenderSettles.SETTLED,
        receiver_settles=ReceiverSettles.SECOND,
        properties={"com.microsoft:timeout": 5, "com.microsoft:receiver-name": "r"},
        max_message_size=1000,
    )

    assert attached == LinkAttached(
        link=attached.link,
        session=attached.session,
        name="n",
        we_send=True,
        source=source,
        target=Terminus(dynamic=True),
        sender_settles=SenderSettles.SETTLED,
        receiver_settles=ReceiverSettles.SECOND,
        max_message_size=1000,
        properties={"com.microsoft:timeout": 5, "com.microsoft:receiver-name": "r"},
    )


def test_accepting_echoes_what_was_asked_for_but_for_what_is_told_otherwise(pair):
    _, attached = pair.attach(
        we_send=False,
        source=Terminus(address="q", filters={"com.microsoft:session-filter": None}),
        target=Terminus(address="receiver-link"),
        receiver_settles=ReceiverSettles.SECOND,
    )

    pair.server.accept(
        attached.link,
        filters={"com.microsoft:session-filter": "s1"},
        properties={"com.microsoft:locked-until-utc": 5},
        max_message_size=262144,
    )
    _, (answer,) = pair.pump()

    assert answer.source == Terminus(address="q", filters={"com.microsoft:session-filter": "s1"})
    assert answer.target == Terminus(address="receiver-link")
    assert answer.receiver_settles is ReceiverSettles.SECOND
    assert answer.properties == {"com.microsoft:locked-until-utc": 5}
    assert answer.max_message_size == 262144


def test_a_node_made_for_a_dynamic_source_is_named(pair):
    _, attached = pair.attach(we_send=False, source=Terminus(dynamic=True))

    pair.server.accept(attached.link, address="reply-1")
    _, (answer,) = pair.pump()

    assert answer.source.address == "reply-1"


def test_a_transaction_coordinator_is_recognised(pair):
    _, attached = pair.attach(target=Terminus(coordinator=True))

    assert attached.target == Terminus(coordinator=True)


def test_a_refusal_has_neither_source_nor_target_and_a_reason(pair):
    ours, attached = pair.attach()

    pair.server.refuse(attached.link, LOCK_LOST)
    _, (answer, detached) = pair.pump()

    assert (answer.link, answer.source, answer.target) == (ours, None, None)
    assert detached == LinkDetached(link=ours, closed=True, error=LOCK_LOST)


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_told_and_answered_once(pair, closed):
    ours, theirs = pair.link()

    pair.client.detach(ours, closed=closed)
    at_server, at_client = pair.pump()
    again, _ = pair.attach(name="another")

    assert at_server == [LinkDetached(link=theirs, closed=closed, error=None)]
    assert at_client == []
    assert again is not None


def lingering(pair, **fields):
    """A link that lingers: the client's id, and the server's event."""
    ours, attached = pair.attach(**fields)
    pair.server.accept(attached.link, lingers=True)
    pair.pump()
    return ours, attached


def test_the_answer_to_a_detach_is_told_to_who_awaits_it(pair):
    ours, theirs = pair.link()

    pair.client.detach(ours, awaited=True)
    at_server, at_client = pair.pump()

    assert at_server == [LinkDetached(link=theirs, closed=True, error=None)]
    assert at_client == [LinkDetached(link=ours, closed=True, error=None)]


@pytest.mark.parametrize("closed", [True, False])
def test_the_detach_of_a_link_that_lingers_is_answered_later(pair, closed):
    ours, attached = lingering(pair, we_send=False)

    pair.client.detach(ours, closed=closed, awaited=True)
    at_server, too_early = pair.pump()
    pair.server.answer_detach(attached.link)
    pair.server.answer_detach(attached.link)
    _, at_client = pair.pump()

    assert at_server == [LinkDetached(link=attached.link, closed=closed, error=None)]
    assert too_early == []
    assert at_client == [LinkDetached(link=ours, closed=closed, error=None)]


def test_a_link_that_lingers_is_void_once_the_peer_has_detached_it(pair):
    ours, attached = lingering(pair, we_send=False)
    pair.client.grant(ours, 100)
    pair.pump()
    delivery = pair.server.send(attached.link, b"1", b"a")
    pair.client.detach(ours)
    pair.pump()

    pair.server.settle(delivery, ACCEPTED)
    pair.server.drained(attached.link)
    pair.server.detach(attached.link)

    assert pair.server.send(attached.link, b"2", b"a") is None
    assert pair.server.credit(attached.link) == 0
    assert take_all(pair.server) == b""


def test_a_link_that_lingers_is_detached_by_us_as_any_other(pair):
    ours, attached = lingering(pair, we_send=False)

    pair.server.answer_detach(attached.link)
    pair.server.detach(attached.link, LOCK_LOST)
    at_server, at_client = pair.pump()

    assert at_client == [LinkDetached(link=ours, closed=True, error=LOCK_LOST)]
    assert at_server == []


@pytest.mark.parametrize("closed", [True, False])
def test_the_name_of_a_link_that_lingers_is_free_for_another_one(pair, closed):
    session = pair.client.begin()
    ours, attached = lingering(pair, session=session, name="same")
    pair.client.detach(ours, closed=closed)
    pair.pump()

    ours, theirs = pair.link(session=session, name="same")
    pair.server.answer_detach(attached.link)
    pair.client.send(ours, b"1", b"a")
    (received,), at_client = pair.pump()

    assert received.link == theirs
    assert at_client == []


@pytest.mark.parametrize("which", ["server", "client"])
def test_a_session_that_ends_takes_along_what_lingers(pair, which):
    session = pair.client.begin()
    ours, attached = lingering(pair, session=session, we_send=False)
    pair.client.detach(ours, awaited=True)
    pair.pump()

    if which == "server":
        pair.server.end(attached.session)
    else:
        pair.client.end(session)
    at_server, at_client = pair.pump()
    pair.server.answer_detach(attached.link)
    _, later = pair.pump()

    told = [LinkDetached(link=ours, closed=True, error=None)]
    told.append(SessionClosed(session=session, error=None))
    ended = [SessionClosed(session=attached.session, error=None)]
    assert (at_server, at_client) == (([], told) if which == "server" else (ended, []))
    assert later == []


def test_a_connection_that_is_closed_takes_along_what_lingers(pair):
    ours, attached = lingering(pair, we_send=False)
    pair.client.detach(ours, awaited=True)
    pair.pump()

    pair.client.close()
    pair.pump()
    pair.server.answer_detach(attached.link)

    assert take_all(pair.server) == b""
    assert pair.server.finished


def test_the_same_name_can_be_attached_again(pair):
    session = pair.client.begin()
    for _ in range(3):
        ours, theirs = pair.link(session=session, name="same")
        pair.client.detach(ours)
        pair.pump()

    _, theirs = pair.link(session=session, name="same")

    assert pair.server.credit(theirs) == 100


# --------------------------------------------------------------------------- messages


@pytest.mark.parametrize("size", [0, 1, 65536, 300_000])
def test_a_message_arrives_whole_and_is_settled(pair, size):
    ours, theirs = pair.link()
    payload = bytes(size)

    sent = pair.client.send(ours, b"\0\xfftag", payload)
    (received,), _ = pair.pump()
    pair.server.settle(received.delivery, ACCEPTED)
    _, told = pair.pump()

    assert received == TransferReceived(theirs, received.delivery, b"\0\xfftag", 0, payload, False)
    assert told[-1] == DispositionReceived(ours, sent, ACCEPTED, True)


@pytest.mark.parametrize(
    "outcome",
    [
        ACCEPTED,
        RELEASED,
        Rejected(),
        Rejected(error=LOCK_LOST),
        Modified(delivery_failed=True),
        Modified(undeliverable_here=True, annotations={"x-opt-a": symbol("b")}),
    ],
    ids=str,
)
def test_an_outcome_is_asked_for_by_the_receiver_and_confirmed_by_the_sender(pair, outcome):
    ours, theirs = pair.link(we_send=False, receiver_settles=ReceiverSettles.SECOND)
    sent = pair.server.send(theirs, b"1", b"payload")
    _, (received,) = pair.pump()

    pair.client.update(received.delivery, outcome)
    asked, _ = pair.pump()
    pair.server.settle(sent, outcome)
    _, confirmed = pair.pump()

    assert asked[-1] == DispositionReceived(theirs, sent, outcome, False)
    assert confirmed == [DispositionReceived(ours, received.delivery, outcome, True)]


def test_a_settled_message_needs_no_answer(pair):
    ours, _theirs = pair.link()

    pair.client.send(ours, b"1", b"payload", settled=True)
    (received,), _ = pair.pump()
    pair.server.settle(received.delivery, ACCEPTED)

    assert received.settled
    assert pair.pump() == ([], [])
    assert pair.server.unsettled == 0


def test_bytes_that_came_in_count_until_they_are_settled(pair):
    ours, _theirs = pair.link()
    pair.client.send(ours, b"1", bytes(1000))
    pair.client.send(ours, b"2", bytes(200))
    (first, _second), _ = pair.pump()

    before = pair.server.unsettled
    pair.server.settle(first.delivery, ACCEPTED)
    between = pair.server.unsettled
    pair.client.detach(ours)
    pair.pump()

    assert (before, between, pair.server.unsettled) == (1200, 200, 0)


def test_bytes_that_were_sent_count_until_they_are_taken(pair):
    ours, _ = pair.link()

    pair.client.send(ours, b"1", bytes(500_000))
    before = pair.client.unsent
    pair.pump()

    assert before >= 500_000
    assert pair.client.unsent == 0


def test_as_much_as_is_asked_for_is_taken_at_once(pair):
    ours, _ = pair.link(credit=100)
    for number in range(100):
        pair.client.send(ours, b"%d" % number, bytes(1000))

    piece = pair.client.data_to_send(64 * 1024)
    rest = pair.client.data_to_send(64 * 1024)

    assert 60_000 < len(piece) <= 64 * 1024
    assert len(piece) + len(rest) > 100_000
    assert pair.client.data_to_send(64 * 1024) == b""


def test_without_credit_a_message_waits(pair):
    ours, theirs = pair.link(credit=1)
    pair.client.send(ours, b"1", b"a")
    pair.client.send(ours, b"2", b"b")
    first, _ = pair.pump()

    pair.server.grant(theirs, 1)
    second, _ = pair.pump()

    assert [each.payload for each in first] == [b"a"]
    assert second[-1].payload == b"b"


def test_drained_credit_is_given_back(pair):
    ours, theirs = pair.link(we_send=False, credit=5)

    pair.client.drain(ours)
    asked, _ = pair.pump()
    pair.server.send(theirs, b"1", b"last", settled=True)
    pair.server.drained(theirs)
    _, told = pair.pump()

    assert asked == [LinkFlow(link=theirs, credit=5, drain=True)]
    assert [type(event) for event in told] == [TransferReceived, LinkDrained]
    assert pair.client.credit(ours) == 0


def test_a_message_above_the_limit_is_rejected_and_the_link_lives(pair):
    ours, _theirs = pair.link(max_message_size=100_000)
    pair.client.send(ours, b"1", bytes(100_001))
    pair.client.send(ours, b"2", bytes(300_000))
    pair.client.send(ours, b"3", bytes(100_000))

    arrived, told = pair.pump()

    rejected = [event for event in told if isinstance(event, DispositionReceived)]
    assert [event.state.error.condition for event in rejected] == [
        "amqp:link:message-size-exceeded"
    ] * 2
    assert [event.tag for event in arrived] == [b"3"]
    assert pair.server.unsettled == 100_000


def test_settling_after_the_detach_does_nothing(pair):
    ours, _theirs = pair.link()
    pair.client.send(ours, b"1", b"a")
    (received,), _ = pair.pump()
    pair.client.detach(ours)
    pair.pump()

    pair.server.settle(received.delivery, ACCEPTED)

    assert take_all(pair.server) == b""


def test_a_disposition_after_the_detach_is_ignored(pair):
    """The SDK settles over $management when it sees the link gone; its disposition comes late."""
    ours, theirs = pair.link(we_send=False)
    pair.server.send(theirs, b"1", b"a")
    _, (received,) = pair.pump()

    pair.server.detach(theirs)
    pair.client.settle(received.delivery, ACCEPTED)
    at_server, at_client = pair.pump()

    assert at_server == []
    assert at_client == [LinkDetached(link=ours, closed=True, error=None)]


def test_a_session_that_the_client_began_is_told_to_both(pair):
    session = pair.client.begin()

    at_server, at_client = pair.pump()

    assert [type(event) for event in at_server] == [SessionOpened]
    assert at_client == [SessionOpened(session=session)]


def test_a_delivery_that_waits_for_its_outcome_has_none_when_the_peer_detaches(pair):
    ours, _ = pair.link()
    pair.client.send(ours, b"1", b"\x00\x53\x75\xa0\x01x")
    pair.pump()

    pair.client.detach(ours)
    pair.server.feed(take_all(pair.client))
    answer = take_all(pair.server)

    assert b"\x00\x53\x16" in answer  # a detach
    assert b"\x00\x53\x15" not in answer  # a disposition


def test_an_attach_in_a_session_that_we_have_ended_is_not_told(pair):
    session = pair.client.begin()
    (begun,), _ = pair.pump()

    pair.server.end(begun.session)
    pair.client.attach(session, NewLink(name="late", we_send=True, source=None, target=None))
    at_server, at_client = pair.pump()

    assert [type(event) for event in at_client] == [LinkDetached, SessionClosed]
    assert not any(isinstance(event, LinkAttached | ConnectionClosed) for event in at_server)
