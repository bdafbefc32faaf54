"""A gateway with workers uses no more than one that is a single process."""

from pathlib import Path

from gateway.config.file import parse
from gateway.config.options import Config
from gateway.extensions.workers.options import of_worker, of_workers, shared

CONFIG = """
workers = 3

[namespaces.north]
url = "servicebus+http://key@127.0.0.1:1"

[namespaces.south]
url = "servicebus+http://key@127.0.0.1:2"

[pairing]
primary = "north"
secondary = "south"
label = "north"
enable_syphon = true
max_inflight = "64MiB"

[limits]
max_connections = 900
max_body_memory = "128MiB"

[[endpoints]]
protocol = "admin"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "service-bus"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "storage-queue"
bind = "127.0.0.1:0"

[[endpoints]]
protocol = "amqp"
bind = "127.0.0.1:0"
"""
MIB = 1024 * 1024


def config(text: str = CONFIG) -> Config:
    return parse(text, source="test", folder=Path(), environ={}).config


def inflight(config: Config) -> int:
    assert config.pairing is not None
    return config.pairing.options.max_inflight


def test_memory_is_divided_among_the_parent_and_its_workers() -> None:
    parent, worker = shared(config()), of_worker(config())

    assert inflight(parent) == inflight(worker) == 16 * MIB
    assert parent.limits.http.max_body_memory == worker.limits.http.max_body_memory == 32 * MIB


def test_connections_are_divided_among_the_workers() -> None:
    assert shared(config()).limits.listener.max_connections == 900
    assert of_worker(config()).limits.listener.max_connections == 300


def test_the_parent_does_what_one_process_does_for_all() -> None:
    parent, worker = shared(config()), of_worker(config())

    assert parent.pairing is not None
    assert worker.pairing is not None
    assert (parent.pairing.enable_syphon, worker.pairing.enable_syphon) == (True, False)
    assert worker.home_name == parent.home_name


def test_workers_serve_the_endpoints_without_state_between_two_connections() -> None:
    assert of_workers(config()) == [1, 3]
    assert of_workers(config(CONFIG.replace("workers = 3", "workers = 1"))) == []
