"""The files in conf/: they parse, and the one with every option has every option."""

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.brokers.registry import options_class
from gateway.cli import main
from gateway.config.file import Loaded, load, parse
from gateway.config.options import (
    DEFAULT,
    AccessEntry,
    AccountEntry,
    Config,
    Endpoint,
    Limits,
    Listen,
    Logging,
    Namespace,
    Pairing,
)
from gateway.config.reading import option_names
from gateway.pairing.options import EntityRule

CONF = Path(__file__).parents[2] / "conf"
EVERY_OPTION = (CONF / "pairgate.toml").read_text()
COMMENTED_OUT = re.compile(r"^# (?=\[|\w+ = )", re.MULTILINE)
SECRETS = (
    "NORTH_KEY",
    "SOUTH_KEY",
    "ENVELOPE_KEY",
    "ORDERS_KEY",
    "ORDERS_KEY_2",
    "PRODUCER_KEY",
    "RABBIT_PASSWORD",
    "RABBIT_NORTH_PASSWORD",
    "RABBIT_SOUTH_PASSWORD",
)
CONNECTION = "Endpoint=sb://contoso-south.example.net/;SharedAccessKeyName=a;SharedAccessKey=k"
IN_BASE64 = ("CONTOSO_KEY", "CONTOSO_KEY_2")


def read(text: str, folder: Path) -> Loaded:
    environ = dict.fromkeys(SECRETS, "a secret of sixteen bytes")
    environ |= {"CONNECTION": CONNECTION, "SOUTH_CONNECTION": CONNECTION}
    environ |= dict.fromkeys(IN_BASE64, "YSBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcw==")
    return parse(text, source="conf", folder=folder, environ=environ)


def test_the_file_with_every_option_says_what_happens_without_a_file(tmp_path: Path) -> None:
    assert read(EVERY_OPTION, tmp_path).config == read(DEFAULT, tmp_path).config


def test_the_options_without_a_default_are_good_examples(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "sb"}]}}')

    config = read(COMMENTED_OUT.sub("", EVERY_OPTION), tmp_path).config

    assert config.entities
    assert config.access
    assert config.endpoints[0].tls is not None


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("", Config),
        ("pairing", Pairing),
        ("pairing.syphon", attrs.fields(Pairing).syphon.type),
        ("pairing.trial_pause", attrs.fields(attrs.fields(Pairing).options.type).trial_pause.type),
        ("entities", EntityRule),
        ("endpoints", Endpoint),
        ("access", AccessEntry),
        ("accounts", AccountEntry),
        ("limits", Limits),
        ("limits.rest", attrs.fields(Limits).rest.type),
        ("limits.storage", attrs.fields(Limits).storage.type),
        ("limits.amqp", attrs.fields(Limits).amqp.type),
        ("limits.leases", attrs.fields(Limits).leases.type),
        ("listener", Listen),
        ("logging", Logging),
    ],
)
def test_no_option_is_missing(section: str, kind: Any) -> None:
    table: Any = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))
    for name in filter(None, section.split(".")):
        table = table[name]

    assert set(table[0] if isinstance(table, list) else table) == option_names(kind)


@pytest.mark.parametrize("names", [("east",), ("north",), ("azure",), ("artemis",), ("rabbit",)])
def test_no_option_of_a_namespace_is_missing(names: tuple[str]) -> None:
    namespaces = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))["namespaces"]
    tables = [namespaces[name] for name in names]
    kind = options_class(tables[0]["url"])
    common = set() if names == ("east",) else {"queues", "entities"}

    assert set(tables[0]) | common == option_names(Namespace) | option_names(kind)


def test_every_option_has_a_comment() -> None:
    bare = [
        line
        for line in EVERY_OPTION.splitlines()
        if " = " in line and "#" not in line.removeprefix("# ")
    ]

    assert bare == []


@pytest.mark.parametrize("path", sorted(CONF.glob("examples/*.toml")), ids=lambda path: path.name)
def test_examples_are_good_configurations(path: Path, tmp_path: Path) -> None:
    loaded = read(path.read_text(), tmp_path)

    assert loaded.config.pairing is not None


def test_examples_are_there() -> None:
    found = {path.name for path in CONF.glob("examples/*")}

    assert found >= {
        "embedded.toml",
        "pairgate.service",
        "pairgate-listen.service",
        "pairgate-syphon.service",
        "servicebus-pair.toml",
        "two-machines.toml",
    }


@pytest.mark.parametrize(
    "name", ["pairgate.service", "pairgate-listen.service", "pairgate-syphon.service"]
)
def test_units_start_a_command_that_there_is(name: str) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(CONF / "examples" / name)
    _, command, option, *_ = unit["Service"]["ExecStart"].split()

    assert command in main.commands
    assert option in {name for each in main.commands[command].params for name in each.opts}


def test_without_a_file_the_default_is_taken(tmp_path: Path) -> None:
    loaded = load(None, environ={}, here=tmp_path)

    assert loaded.source == "the embedded default"


def test_a_file_in_the_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text('[namespaces.here]\nurl = "memory:"\n')

    assert set(load(None, environ={}, here=tmp_path).config.namespaces) == {"here"}
