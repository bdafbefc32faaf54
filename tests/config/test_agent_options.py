"""`[agent]`: valid options, and the error of each mistake."""

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.file import Loaded, parse
from gateway.listening.scaling.autoscaling import AutoscalingOptions

HERE = '[namespaces.here]\nurl = "memory:"\n'
ADMIN = '[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:9640"\n'
ORDERS = '[[agent.listeners]]\nqueues = "orders"\nto = "http://127.0.0.1:8080/"\n'


def read(text: str) -> Loaded:
    return parse(text, source="x.toml", folder=Path("/nowhere"), environ={})


def test_queues_and_a_handler_are_enough() -> None:
    loaded = read(HERE + ADMIN + ORDERS)
    (listener,) = loaded.config.agent.listeners

    assert (listener.queues, listener.to) == ("orders", "http://127.0.0.1:8080/")
    assert listener.autoscaling == AutoscalingOptions()
    assert loaded.warnings == ()


def test_each_rule_can_be_off() -> None:
    off = 'messages_per_process = "off"\ntarget_age = "off"\ndrain_within = "off"\n'
    (listener,) = read(HERE + ADMIN + ORDERS + off).config.agent.listeners

    assert listener.autoscaling == AutoscalingOptions(
        messages_per_process=None, target_age=None, drain_within=None
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ORDERS, "agent.gateway: is missing, and this configuration has no `admin` endpoint"),
        (
            ADMIN + '[[agent.listeners]]\nqueues = "a"\n',
            "agent.listeners[0]: one of `to`, `exec` and `python` expected",
        ),
        (
            ADMIN + ORDERS + 'exec = "work"',
            "agent.listeners[0]: one of `to`, `exec` and `python` expected",
        ),
        (ADMIN + ORDERS.replace('"orders"', '"a:0"'), "agent.listeners[0].queues: queues: 'a:0'"),
        (ADMIN + ORDERS.replace('"orders"', '""'), "agent.listeners[0].queues: queues: at least"),
        (ADMIN + ORDERS.replace('"orders"', '"a//b"'), "agent.listeners[0].queues: "),
        (
            ADMIN + ORDERS + "min_processes = 5",
            "agent.listeners[0].max_processes: at least min_processes, 5, expected, found 4",
        ),
        (ADMIN + ORDERS + "max_processes = 0", "agent.listeners[0].max_processes: must be >= 1"),
        (ADMIN + ORDERS + "parallel = 0", "agent.listeners[0].parallel: must be >= 1"),
        (ADMIN + ORDERS + "cooldown = 60", "agent.listeners[0].cooldown: a duration such as"),
        (ADMIN + "[agent]\nmax_load = 1.5", "agent.max_load: must be <= 1.0"),
        (ADMIN + '[agent]\ninterval = "0s"', "agent.interval: must be > 0"),
    ],
)
def test_a_mistake_is_named_with_its_key(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(HERE + text)

    assert caught.value.problems[0].startswith(f"x.toml: {problem}")


def test_another_gateway_needs_no_endpoint_here() -> None:
    agent = '[agent]\ngateway = "http://gateway.example.net:9640"\n'

    assert read(HERE + agent + ORDERS).config.agent.gateway == "http://gateway.example.net:9640"


def test_a_grace_that_kills_what_may_yet_finish_is_a_warning() -> None:
    (warning,) = read(HERE + ADMIN + '[agent]\ngrace = "20s"\n' + ORDERS).warnings

    assert warning.startswith("agent.grace: 20 s isn't more than the 20 s of listener.grace")


METRICS = '[listener]\nmetrics = "127.0.0.1:{}"\n'


def test_one_port_for_several_processes_is_a_warning() -> None:
    (warning,) = read(HERE + ADMIN + METRICS.format(9641) + ORDERS).warnings

    assert warning.startswith(
        "listener.metrics: 127.0.0.1:9641 can be bound by one process only, and"
    )


@pytest.mark.parametrize(
    ("port", "more"),
    [
        (0, ""),
        (9641, "max_processes = 1\n"),
        (9641, 'arguments = ["--metrics", "127.0.0.1:0"]\n'),
    ],
)
def test_a_port_of_its_own_for_each_process_is_none(port: int, more: str) -> None:
    assert read(HERE + ADMIN + METRICS.format(port) + ORDERS + more).warnings == ()
