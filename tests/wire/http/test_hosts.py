"""URLs whose authority names one host or several."""

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.wire.http.hosts import parse_server_url


@pytest.mark.parametrize(
    ("authority", "hosts"),
    [
        ("a", ["a"]),
        ("A.example:5672", ["a.example:5672"]),
        ("user:pa%2Css@a:1,b,c:3", ["a:1", "b", "c:3"]),
        ("[::1]:5672,[fe80::1%eth0],127.0.0.1", ["[::1]:5672", "[fe80::1%eth0]", "127.0.0.1"]),
        ("a:1,a:2", ["a:1", "a:2"]),
    ],
)
def test_each_host_of_a_list_has_its_own_port_or_none(authority: str, hosts: list[str]) -> None:
    found = parse_server_url(f"rabbitmq://{authority}/vhost")

    assert [str(host) for host in found.hosts] == hosts
    assert found.path == "/vhost"


def test_user_and_password_are_those_before_the_last_at_sign_and_unquoted() -> None:
    found = parse_server_url("amqps://a%40b:c%2Cd@one,two")

    assert (found.scheme, found.user, found.password) == ("amqps", "a@b", "c,d")
    assert "c,d" not in repr(found)


@pytest.mark.parametrize(
    ("authority", "problem"),
    [
        ("", "host: HOST"),
        ("secret@", "host: HOST"),
        ("a,", "host 2 of 2: HOST"),
        ("a,,b", "host 2 of 3: HOST"),
        ("a b", "host: HOST"),
        ("::1", "an IPv6 address in brackets"),
        ("[::1", "an IPv6 address in brackets"),
        ("a:secret", "host: HOST"),
        ("a,b:0", "host 2 of 2: a port from 1 to 65535 expected"),
        ("a:99999", "host: a port from 1 to 65535 expected"),
        ("a:1,A:1", "host 2 of 2: is given twice"),
    ],
)
def test_a_malformed_host_is_told_by_its_number_and_nothing_of_the_url_is_repeated(
    authority: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_server_url(f"rabbitmq://{authority}/vhost")

    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "99999" not in str(caught.value)
