"""The benchmark of an agent with many queues, as processes: the parts that need none."""

import gc
import os
import socket
from pathlib import Path

import pytest
import trio

from benchmarks.agent_processes import AMQP, PROTOCOLS, REST, agent_config, connections_of
from benchmarks.listener_scale import names_of
from gateway.config.file import parse
from tests.e2e.processes import KEY_VARIABLE, GatewayProcess, broker_config


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_agent_finds_its_gateway_by_one_protocol_alone(
    protocol: str, nursery: trio.Nursery, tmp_path: Path
) -> None:
    ports = [15001, 15002, 15003]
    ends = [(REST, ports[0]), (AMQP, ports[1]), ("admin", ports[2])]
    endpoints = "".join(
        f'\n[[endpoints]]\nprotocol = "{name}"\nbind = "127.0.0.1:{port}"\n' for name, port in ends
    )
    base = broker_config("queue-0", "queue-1").partition("[[endpoints]]")[0]
    gateway = GatewayProcess(tmp_path, base + endpoints, ("serve",), nursery, ports=ports)

    text = agent_config(gateway, protocol, names_of(2))
    config = parse(text, source="x.toml", folder=tmp_path, environ={KEY_VARIABLE: "key"}).config

    assert [each.protocol for each in config.endpoints] == [protocol, "admin"]
    assert [each.queues for each in config.agent.listeners] == ["queue-0 queue-1"]


def test_the_connections_of_a_process_are_those_with_a_peer() -> None:
    gc.collect()  # sockets that other tests have left
    before = connections_of(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = connections_of(os.getpid())
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            both = connections_of(os.getpid())
            assert client.getpeername() == server.getsockname()

    assert (listening - before, both - before) == (0, 2)
