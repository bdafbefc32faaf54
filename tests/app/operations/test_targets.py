"""The key with which a command uses the running gateway."""

from pathlib import Path

import pytest

from gateway.app.failure import ExitCode, Failure
from gateway.app.operations.targets import policy_with
from gateway.config.file import parse
from gateway.config.options import Config
from gateway.domain.access import Right

HERE = '[namespaces.here]\nurl = "memory:"\n'
BY_CERTIFICATE = """
[[access]]
name = "orders-sender"
certificates = ["CN=orders"]
rights = ["Send"]
"""
WITH_KEY = """
[[access]]
name = "listener"
key = { env = "KEY" }
rights = ["Listen"]
"""


def config_of(text: str) -> Config:
    environ = {"KEY": "a key of sixteen"}
    return parse(HERE + text, source="x.toml", folder=Path("/nowhere"), environ=environ).config


def test_a_policy_without_a_key_that_has_the_right_is_named() -> None:
    config = config_of(BY_CERTIFICATE + WITH_KEY)

    with pytest.raises(Failure) as caught:
        policy_with(config, "localhost:5671", Right.SEND)

    assert str(caught.value) == (
        "no [[access]] with a key has the right Send, which this command needs at localhost:5671;"
        " add one, or give a key to 'orders-sender'"
    )
    assert caught.value.code is ExitCode.WRONG


def test_where_no_policy_has_the_right_none_is_named() -> None:
    with pytest.raises(Failure, match=r"at localhost:5671$"):
        policy_with(config_of(WITH_KEY), "localhost:5671", Right.SEND)


def test_the_policy_with_a_key_is_chosen() -> None:
    assert (
        policy_with(config_of(BY_CERTIFICATE + WITH_KEY), "here", Right.LISTEN).name == "listener"
    )
