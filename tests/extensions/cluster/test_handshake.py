import random
from typing import Any

import pytest

from gateway.extensions.cluster.handshake import (
    CLIENT_HELLO,
    LENGTH,
    SERVER_HELLO,
    ChannelError,
    ClientHandshake,
    SealedFrames,
    ServerHandshake,
)

SECRET, OTHER = "s" * 32, "o" * 32
ADDRESS = "10.0.0.1:5680"


def agreed(
    *,
    client: str = SECRET,
    server: tuple[str, ...] = (SECRET,),
    meant: str = ADDRESS,
    seed: int = 1,
) -> tuple[SealedFrames, SealedFrames]:
    """The channel as the client has it, and as the server has it."""
    asking = ClientHandshake(client, meant, random.Random(seed))
    answering = ServerHandshake(server, ADDRESS, random.Random(seed + 1))
    hello, of_server = answering.agree(asking.hello)
    assert (len(asking.hello), len(hello)) == (CLIENT_HELLO, SERVER_HELLO)
    return asking.agree(hello), of_server


def test_frames_go_both_ways_and_nothing_of_them_can_be_read():
    client, server = agreed()

    for content in (b"", b"settle", b"x" * 1000):
        sealed = client.seal(content)
        assert content == b"" or content not in sealed
        assert server.open(sealed[LENGTH:]) == content
        assert client.open(server.seal(content)[LENGTH:]) == content


def test_the_same_content_is_never_sealed_the_same_way():
    client, _ = agreed()

    assert client.seal(b"settle") != client.seal(b"settle")


def prove(**options: Any) -> None:
    client, server = agreed(**options)
    server.open(client.seal(b"")[LENGTH:])


@pytest.mark.parametrize(
    "wrong", [{"meant": "10.0.0.2:5680"}, {"client": OTHER, "server": (OTHER + "!", SECRET)}]
)
def test_a_peer_that_means_another_gateway_or_has_another_secret_proves_nothing(wrong):
    with pytest.raises(ChannelError):
        prove(**wrong)


def test_the_client_notices_too_that_the_server_is_another_one():
    client, server = agreed(meant="10.0.0.2:5680")

    with pytest.raises(ChannelError, match="another secret or another address"):
        client.open(server.seal(b"")[LENGTH:])


def test_a_server_takes_each_of_its_secrets():
    client, server = agreed(client=OTHER, server=(SECRET, OTHER))

    assert server.open(client.seal(b"x")[LENGTH:]) == b"x"


def test_a_frame_is_opened_once_and_in_its_order():
    client, server = agreed()
    first, second = client.seal(b"1")[LENGTH:], client.seal(b"2")[LENGTH:]

    with pytest.raises(ChannelError):
        server.open(second)
    assert server.open(first) == b"1"
    with pytest.raises(ChannelError):
        server.open(first)


def test_a_frame_isnt_good_in_the_other_direction_or_on_another_connection():
    client, server = agreed()
    _, later = agreed(seed=5)

    sealed = client.seal(b"1")[LENGTH:]
    for other in (client, later):
        with pytest.raises(ChannelError):
            other.open(sealed)
    assert server.open(sealed) == b"1"


def test_each_changed_byte_is_noticed():
    client, server = agreed()
    sealed = client.seal(b"settle")[LENGTH:]

    for index in range(len(sealed)):
        wrong = bytearray(sealed)
        wrong[index] ^= 1
        with pytest.raises(ChannelError):
            server.open(bytes(wrong))
    assert server.open(sealed) == b"settle"


@pytest.mark.parametrize(
    "hello", [b"", b"GET / HTTP/1.1\r\n", b"PGCLUST1", b"PGCLUST1" + bytes(40)]
)
def test_an_invalid_hello_is_refused(hello):
    with pytest.raises(ChannelError):
        ServerHandshake((SECRET,), ADDRESS, random.Random(1)).agree(hello)
    with pytest.raises(ChannelError):
        ClientHandshake(SECRET, ADDRESS, random.Random(1)).agree(hello)


def test_a_public_key_that_gives_every_exchange_the_same_result_is_refused():
    client = ClientHandshake(SECRET, ADDRESS, random.Random(1))
    zero = client.hello[:16] + bytes(32)

    with pytest.raises(ChannelError, match="public key"):
        ServerHandshake((SECRET,), ADDRESS, random.Random(1)).agree(zero)
    with pytest.raises(ChannelError, match="public key"):
        client.agree(b"PGCLUST1" + bytes(32))
