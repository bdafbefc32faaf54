"""The login that passes between client and primary."""

import pytest
from pamqp import commands

from gateway.frontends.rabbitmq.login import ClientLogin
from gateway.wire.rabbitmq.frames import ProtocolError, method_frame
from gateway.wire.rabbitmq.relayed import FrameReader


def frame(method):
    [found] = FrameReader().feed(method_frame(0, method))
    return found


def logged_in(password="secret", vhost="/"):
    login = ClientLogin()
    start = commands.Connection.StartOk(
        client_properties={}, mechanism="PLAIN", response=f"\0anna\0{password}"
    )
    login.from_client(frame(start))
    login.from_client(frame(commands.Connection.TuneOk(2047, 131_072, 60)))
    login.from_client(frame(commands.Connection.Open(virtual_host=vhost)))
    return login


def test_a_login_is_known_by_its_credentials():
    login = logged_in()

    assert (login.user, login.vhost, login.heartbeat) == ("anna", "/", 60)
    assert login.digest == logged_in().digest
    assert login.digest != logged_in(password="other").digest


def test_no_text_of_a_login_shows_the_password():
    assert "secret" not in repr(logged_in())


def test_a_certificate_of_the_client_is_not_offered_since_the_primary_never_sees_it():
    offer = frame(
        commands.Connection.Start(server_properties={"a": "b"}, mechanisms="PLAIN EXTERNAL")
    )
    [passed] = FrameReader().feed(ClientLogin().from_primary(offer))

    assert passed.method().mechanisms == "PLAIN"
    assert passed.method().server_properties == {"a": "b"}


def test_a_client_does_nothing_else_before_its_login():
    with pytest.raises(ProtocolError, match="before the login"):
        ClientLogin().from_client(frame(commands.Channel.Open()))


def test_a_login_without_end_is_refused():
    login, step = ClientLogin(), frame(commands.Connection.SecureOk("x"))
    for _ in range(16):
        login.from_client(step)
    with pytest.raises(ProtocolError, match="too many steps"):
        login.from_client(step)
