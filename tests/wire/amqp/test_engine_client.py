"""An engine as a client: attaches, and changes its mind before the answer is here."""

import pytest

from gateway.wire.amqp.events import (
    ACCEPTED,
    ConnectionClosed,
    LinkAttached,
    LinkDetached,
    NewLink,
    Terminus,
    TransferReceived,
)
from gateway.wire.amqp.sasl import OK, SASL_HEADER, Credentials, SaslClient, SaslFailed, SaslServer
from tests.wire.amqp.pair_of_engines import Pair, new_client

HERE, THERE = Terminus(address="here"), Terminus(address="there")


@pytest.fixture
def pair():
    return Pair().open()


def attach(pair, *, we_send):
    session = pair.client.begin()
    new = NewLink(name="late", we_send=we_send, source=HERE, target=THERE)
    return session, pair.client.attach(session, new)


def answer(pair, events):
    """Take the link, and use it at once: all of it goes past a client that has left."""
    (attached,) = [event for event in events if isinstance(event, LinkAttached)]
    pair.server.accept(attached.link)
    if attached.we_send:
        pair.server.send(attached.link, b"t", b"payload")
    else:
        pair.server.grant(attached.link, 10)


@pytest.mark.parametrize("we_send", [True, False])
@pytest.mark.parametrize("ends_session", [True, False])
def test_the_answer_to_an_attach_that_was_taken_back_is_not_told(pair, we_send, ends_session):
    session, link = attach(pair, we_send=we_send)
    at_server, _ = pair.pump()
    answer(pair, at_server)
    pair.client.detach(link)
    if ends_session:
        pair.client.end(session)
    at_server, at_client = pair.pump()

    told = LinkAttached | LinkDetached | TransferReceived | ConnectionClosed
    assert not any(isinstance(event, told) for event in at_client)
    assert [type(event) for event in at_server if isinstance(event, LinkDetached)]


@pytest.mark.parametrize("closed", [True, False])
def test_a_peer_that_takes_an_attach_back_is_told_of_the_detach_alone(pair, closed):
    _, link = attach(pair, we_send=False)
    at_server, _ = pair.pump()
    answer(pair, at_server)
    pair.client.detach(link, closed=closed, awaited=True)
    _, at_client = pair.pump()

    assert at_client == [LinkDetached(link=link, closed=closed, error=None)]


def test_a_session_is_good_for_another_link_after_one_was_taken_back(pair):
    session, link = attach(pair, we_send=True)
    pair.client.detach(link)
    pair.pump()
    ours, theirs = pair.link(session=session)
    pair.client.send(ours, b"t", b"payload")
    at_server, _ = pair.pump()

    assert [(e.link, e.payload) for e in at_server if isinstance(e, TransferReceived)] == [
        (theirs, b"payload")
    ]


def test_bytes_that_ask_for_no_answer_wake_no_writer():
    wakes = []
    pair = Pair(new_client(wake=lambda: wakes.append(None))).open()
    ours, _ = pair.link()
    pair.client.send(ours, b"t", b"payload")
    at_server, _ = pair.pump()
    [sent] = [event for event in at_server if isinstance(event, TransferReceived)]
    pair.server.settle(sent.delivery, ACCEPTED)
    before = len(wakes)
    _, at_client = pair.pump()

    assert [event.state for event in at_client] == [ACCEPTED]
    assert len(wakes) == before


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad", b"AMQP\x00\x00\x09\x01"])
def test_a_server_without_sasl_has_refused_nobody(greeting):
    client = new_client(Credentials(mechanism="PLAIN", user="u", password="p"))
    client.feed(greeting)
    (closed,) = client.events()

    assert closed.error.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize(
    ("code", "condition"), [(1, "amqp:unauthorized-access"), (4, "amqp:internal-error")]
)
def test_only_one_outcome_of_sasl_is_about_who_we_are(code, condition):
    server = SaslServer(lambda credentials: OK)
    client = SaslClient(Credentials(mechanism="ANONYMOUS"))
    client.feed(bytearray(server.feed(bytearray(SASL_HEADER))))
    outcome = bytes((0, 0, 0, 16, 2, 1, 0, 0, 0, 0x53, 0x44, 0xC0, 3, 1, 0x50, code))
    with pytest.raises(SaslFailed, match="ANONYMOUS failed") as caught:
        client.feed(bytearray(outcome))

    assert caught.value.condition == condition
