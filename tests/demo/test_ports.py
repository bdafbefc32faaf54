import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from gateway.demo.ports import free_port

MANY = 200
PROCESS = f"""
import sys
from gateway.demo.ports import free_port
print(*(free_port() for _ in range({MANY})), flush=True)
sys.stdin.read()
"""


def test_no_connection_takes_a_free_port_while_its_process_is_down() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, text.split())
    assert not [port for _ in range(100) if first <= (port := free_port()) <= last]


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_processes_that_run_are_given_different_ports() -> None:
    with ExitStack() as running:
        given = []
        for _ in range(4):
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            assert process.stdout is not None
            given += [int(port) for port in process.stdout.readline().split()]
        given += [free_port() for _ in range(MANY)]
    assert len(given) == len(set(given)) == 5 * MANY
