"""Some listeners hear of every message; others poll now and then."""

from pathlib import Path

import pytest

from gateway.app.waking import expected_wake, hears_all_senders
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.status.listening import Wake
from gateway.wire.pairgate.advice import wake_text

OWN = '[namespaces.here]\nurl = "memory:"\n'
REMOTE = '[namespaces.here]\nurl = "servicebus+http://127.0.0.1:1"\n'
ADMIN = '[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:0"\n'
TOPIC = '[triggers]\ntopic = "pairgate-triggers"\n'
ELSEWHERE = (
    TOPIC + 'namespace = "azure"\n[namespaces.azure]\nurl = "servicebus+http://127.0.0.1:2"\n'
)
FOLLOWS = '[listener]\ntriggers = ["http://127.0.0.1:3"]\n'

ANNOUNCED = Wake(announced=True, poll_every=None)
LOOKS = Wake(announced=False, poll_every=60.0)


def config_of(*parts: str) -> Config:
    return parse("".join(parts), source="x.toml", folder=Path("/nowhere"), environ={}).config


@pytest.mark.parametrize("way", [ADMIN, TOPIC])
def test_of_an_own_store_every_message_is_known_to_be_announced(way: str) -> None:
    assert expected_wake(config_of(OWN, way)) == ANNOUNCED


@pytest.mark.parametrize("way", [ADMIN, TOPIC, FOLLOWS])
def test_a_remote_namespace_may_have_senders_that_announce_nothing(way: str) -> None:
    assert expected_wake(config_of(REMOTE, way)) == LOOKS


@pytest.mark.parametrize("way", [ELSEWHERE, FOLLOWS])
def test_a_channel_that_another_process_keeps_may_miss_a_message(way: str) -> None:
    assert expected_wake(config_of(OWN, ADMIN, way)) == LOOKS


def test_gateways_that_the_command_line_names_may_be_before_any_namespace() -> None:
    config = config_of(OWN, ADMIN)

    assert hears_all_senders(config)
    assert not hears_all_senders(config, ["http://127.0.0.1:3"])


def test_without_a_trigger_an_idle_listener_looks_at_least_every_minute() -> None:
    assert expected_wake(config_of(OWN)) == LOOKS


def test_a_listener_that_only_triggers_wake_is_said_to_miss_what_isnt_announced() -> None:
    wake = expected_wake(config_of(REMOTE, ADMIN, '[listener]\nsweep = "off"\n'))

    assert wake == Wake(announced=False, poll_every=None)
    assert "misses" in wake_text(wake)
