import socket
from pathlib import Path

from gateway.demo.ports import free_port


def test_no_connection_takes_a_free_port_while_its_process_is_down() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    assert not [port for _ in range(100) if first <= (port := free_port()) <= last]


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[0] == "127.0.0.1"
