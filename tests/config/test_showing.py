"""The configuration in effect, as `pairgate config show` prints it."""

import tomllib
from pathlib import Path

import pytest

from gateway.config.file import Loaded
from gateway.config.showing import shown_table, toml_of
from tests.config.shipped import COMMENTED_OUT, CONF, EVERY_OPTION, read
from tests.harness.secret_files import write_secret

EXAMPLES = sorted((CONF / "examples").glob("*.toml"))


def shown(loaded: Loaded) -> str:
    return toml_of(shown_table(loaded.config, tomllib.loads(loaded.text)))


@pytest.mark.parametrize("file", [CONF / "pairgate.toml", *EXAMPLES], ids=lambda file: file.name)
def test_the_shown_configuration_is_the_one_in_effect(file: Path, tmp_path: Path) -> None:
    loaded = read(file.read_text(), tmp_path)

    again = read(shown(loaded), tmp_path)

    assert again.config == loaded.config
    assert shown(again) == shown(loaded)


def test_every_option_is_shown(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "sb"}]}}')
    loaded = read(COMMENTED_OUT.sub("", EVERY_OPTION), tmp_path)

    assert read(shown(loaded), tmp_path).config == loaded.config


def test_no_secret_is_shown_wherever_it_stands(tmp_path: Path) -> None:
    canary = "canary-5f1c"
    write_secret(tmp_path / "key", f"{canary}-in-a-file-of-16-bytes")
    loaded = read(
        f"""
        [namespaces.here]
        url = "servicebus+https://gateway@a.example.net"
        key = {{ file = "key" }}

        [[access]]
        name = "ops"
        key = {{ command = ["/bin/echo", "{canary}-a-secret-word"], timeout = "5s" }}
        second_key = {{ env = "ORDERS_KEY" }}
        rights = ["Manage"]

        [listener]
        triggers = ["http://ops:{canary}@gateway.example.net:9640"]

        [agent]
        gateway = "http://gateway.example.net:9640/?sig={canary}"

        [[agent.listeners]]
        queues = "orders"
        exec = "work"
        arguments = ["--password={canary}"]
        """,
        tmp_path,
    )

    text = shown(loaded)

    assert canary not in text
    assert 'key = { file = "key" }' in text
    assert 'key = { command = ["/bin/echo", "(1 more)"], timeout = "5s" }' in text
    assert 'second_key = { env = "ORDERS_KEY" }' in text
    assert f"{canary}-" not in repr(loaded)
