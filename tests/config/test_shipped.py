"""The files in conf/: they parse, and the one with every option has every option."""

import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
import pytest

from gateway.brokers.entra.options import CredentialKind, CredentialOptions
from gateway.cli import COMMANDS, command_named
from gateway.config.endpoints import Endpoint
from gateway.config.file import load
from gateway.config.kinds import options_class
from gateway.config.options import (
    AccessEntry,
    AccountEntry,
    Agent,
    AgentListener,
    Audit,
    Config,
    IssuerEntry,
    Limits,
    Listen,
    Logging,
    Namespace,
    Pairing,
)
from gateway.config.reading import option_names, without_none
from gateway.config.source import DEFAULT
from gateway.extensions.claims.options import ClaimOptions
from gateway.extensions.cluster.options import ClusterOptions
from gateway.extensions.tables import tables
from gateway.pairing.options import EntityRule
from tests.config.shipped import COMMENTED_OUT, CONF, EVERY_OPTION, read
from tests.harness.patience import PATIENCE

SYSTEMD = CONF / "systemd"
SYSTEMD_ANALYZE = "/usr/bin/systemd-analyze"
SERVICES = sorted(SYSTEMD.glob("*.service"))
MOST_EXPOSURE = 2.0  # of 10, by systemd's own measure


def test_the_file_with_every_option_says_what_happens_without_a_file(tmp_path: Path) -> None:
    assert read(EVERY_OPTION, tmp_path).config == read(DEFAULT, tmp_path).config


def test_the_options_without_a_default_are_good_examples(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text('{"UserConfig": {"Namespaces": [{"Name": "sb"}]}}')

    config = read(COMMENTED_OUT.sub("", EVERY_OPTION), tmp_path).config

    assert config.entities
    assert config.access
    assert config.endpoints[0].tls is not None


def entry_of(kind: Any) -> Any:
    """The class of a table, or of each table of a list."""
    return get_args(kind)[0] if get_origin(kind) is tuple else without_none(kind)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("pairing", Pairing),
        ("pairing.syphon", attrs.fields(Pairing).syphon.type),
        ("pairing.trial_pause", attrs.fields(attrs.fields(Pairing).options.type).trial_pause.type),
        ("claims.retry", attrs.fields(ClaimOptions).retry.type),
        ("entities", EntityRule),
        ("endpoints", Endpoint),
        ("access", AccessEntry),
        ("accounts", AccountEntry),
        ("limits", Limits),
        ("limits.rest", attrs.fields(Limits).rest.type),
        ("limits.storage", attrs.fields(Limits).storage.type),
        ("limits.amqp", attrs.fields(Limits).amqp.type),
        ("limits.leases", attrs.fields(Limits).leases.type),
        ("limits.clients", attrs.fields(Limits).clients.type),
        ("limits.admin", attrs.fields(Limits).admin.type),
        ("listener", Listen),
        ("agent", Agent),
        ("audit", Audit),
        ("cluster", ClusterOptions),
        ("logging", Logging),
        *(
            (each.name, entry_of(each.kind))
            for each in tables(Config.point)
            if attrs.has(entry_of(each.kind))
        ),
    ],
)
def test_no_option_of_a_section_is_missing(section: str, kind: Any) -> None:
    table: Any = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))
    for name in section.split("."):
        table = table[name]

    assert set(table[0] if isinstance(table, list) else table) == option_names(kind)


def test_no_option_outside_of_sections_is_missing() -> None:
    table = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))

    assert set(table) == option_names(Config)


@pytest.mark.parametrize(
    "names", [("east",), ("north",), ("azure",), ("artemis",), ("rabbit",), ("storage",)]
)
def test_no_option_of_a_namespace_is_missing(names: tuple[str]) -> None:
    namespaces = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))["namespaces"]
    tables = [namespaces[name] for name in names]
    kind = options_class(tables[0]["url"])
    common = set() if names == ("east",) else {"queues", "entities"}

    assert set(tables[0]) | common == option_names(Namespace) | option_names(kind)


def test_no_option_of_a_credential_is_missing() -> None:
    """Each kind of credential has options of its own."""
    namespaces = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))["namespaces"]
    tables = [namespaces[name]["credential"] for name in ("vm", "aks", "app", "cert")]

    assert {name for table in tables for name in table} == option_names(CredentialOptions)
    assert [table["kind"] for table in tables] == [kind.value for kind in CredentialKind]


def test_no_option_of_an_issuer_is_missing() -> None:
    """Each of them has its keys in one of three places."""
    tables = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))["issuers"]

    assert {name for table in tables for name in table} == option_names(IssuerEntry)


def test_no_option_of_an_agents_listener_is_missing() -> None:
    """Each of them has one of three handlers."""
    tables = tomllib.loads(COMMENTED_OUT.sub("", EVERY_OPTION))["agent"]["listeners"]

    assert {name for table in tables for name in table} == option_names(AgentListener)


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
    # Both stores are on one disk; clients of Storage and RabbitMQ know the service's limit of size.
    warned = {"embedded.toml", "rabbitmq-sidecar.toml", "storage-queue-pair.toml"}
    assert bool(loaded.warnings) is (path.name in warned)


@pytest.mark.parametrize("path", sorted(CONF.glob("examples/*.toml")), ids=lambda path: path.name)
def test_each_example_can_be_watched(path: Path, tmp_path: Path) -> None:
    endpoints = read(path.read_text(), tmp_path).config.endpoints

    assert "admin" in {endpoint.protocol for endpoint in endpoints}
    assert len({endpoint.bind for endpoint in endpoints}) == len(endpoints)


def test_examples_are_there() -> None:
    found = {path.name for path in CONF.glob("examples/*")}

    assert found >= {
        "amqp-primary-embedded-secondary.toml",
        "listeners.toml",
        "secured-gateway.toml",
        "embedded.toml",
        "nginx-balancer.conf",
        "rabbitmq-pair.toml",
        "rabbitmq-primary-embedded-secondary.toml",
        "rabbitmq-sidecar.toml",
        "servicebus-pair.toml",
        "servicebus-primary-rabbitmq-secondary.toml",
        "storage-queue-pair.toml",
        "two-machines.toml",
    }


@pytest.mark.parametrize("path", sorted(CONF.glob("examples/*.toml")), ids=lambda path: path.name)
def test_files_that_an_example_names_are_there(path: Path) -> None:
    named = re.findall(r"[\w-]+definitions\.json", path.read_text())

    assert [name for name in named if not (path.parent / name).exists()] == []
    assert bool(named) == ("rabbitmqs:" in path.read_text())


@pytest.mark.parametrize(
    "path", sorted(CONF.glob("examples/rabbitmq-*.json")), ids=lambda p: p.name
)
def test_only_who_provisions_may_change_a_rabbitmq(path: Path) -> None:
    definitions = json.loads(path.read_text())
    rights = {each["user"]: each for each in definitions["permissions"]}

    assert set(rights) == {user["name"] for user in definitions["users"]}
    assert {name for name, each in rights.items() if each["configure"] != "^$"} == {"provision"}
    assert {each["write"] for each in rights.values()} == {"^amq\\.default$"}
    assert not any(user["password_hash"] or user["tags"] for user in definitions["users"])


def test_units_are_there() -> None:
    assert {path.name for path in SYSTEMD.iterdir()} == {
        "pairgate.service",
        "pairgate.socket",
        "pairgate-agent.service",
        "pairgate-listen.service",
        "pairgate-syphon.service",
        "pairgate-sysusers.conf",
    }


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_units_start_a_command_that_there_is(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read(path)
    _, command, option, *_ = unit["Service"]["ExecStart"].split()

    assert command in COMMANDS
    assert option in {name for each in command_named(command).params for name in each.opts}


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_has_a_folder_for_its_state_and_one_for_its_sockets(path: Path) -> None:
    """All else is read-only (`ProtectSystem=strict`), and no other unit need have made them."""
    unit = configparser.RawConfigParser(strict=False)
    unit.read(path)

    assert unit["Service"]["StateDirectory"] == unit["Service"]["RuntimeDirectory"] == "pairgate"
    assert unit["Service"]["RuntimeDirectoryPreserve"] == "yes", "the units share the folder"


def test_the_socket_unit_has_the_ports_of_the_default_configuration() -> None:
    lines = (SYSTEMD / "pairgate.socket").read_text().splitlines()
    addresses = [line.partition("=")[2] for line in lines if line.startswith("ListenStream=")]
    endpoints = load(None, environ={}, here=CONF).config.endpoints

    assert addresses == [endpoint.bind for endpoint in endpoints]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_exposes_little_by_the_measure_of_systemd(path: Path) -> None:
    command = [SYSTEMD_ANALYZE, "security", "--offline=true", "--no-pager", str(path)]

    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)

    [level] = re.findall(rf"exposure level for {path.name}: ([\d.]+)", result.stdout)
    assert float(level) < MOST_EXPOSURE, result.stdout


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_units_differ_in_no_rule_of_their_confinement(path: Path) -> None:
    """The agent alone reads the load of the machine."""
    rules = {name: confinement(each) for name, each in ((p.name, p) for p in SERVICES)}
    own = rules["pairgate.service"] - {"ProcSubset=pid"}

    assert rules[path.name] - {"ProcSubset=pid"} == own
    assert ("ProcSubset=pid" in rules[path.name]) is (path.name != "pairgate-agent.service")


def test_the_units_have_each_rule_of_the_security_checklist() -> None:
    assert confinement(SYSTEMD / "pairgate.service") >= {
        "NoNewPrivileges=true",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
        "MemoryDenyWriteExecute=true",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "LimitCORE=0",
        "UMask=0077",
    }


def confinement(path: Path) -> set[str]:
    _, first, rules = path.read_text().partition("NoNewPrivileges=")
    return set(f"{first}{rules}".partition("[Install]")[0].splitlines())


def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    units = [path for path in SYSTEMD.iterdir() if path.suffix in {".service", ".socket"}]
    for path in units:
        text = path.read_text().replace("/opt/pairgate/bin/pairgate", "/bin/true")
        (tmp_path / path.name).write_text(text)

    result = subprocess.run(
        [SYSTEMD_ANALYZE, "verify", *(tmp_path / path.name for path in units)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_a_file_the_default_is_taken(tmp_path: Path) -> None:
    loaded = load(None, environ={}, here=tmp_path)

    assert loaded.source == "the embedded default"


def test_a_file_in_the_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "pairgate.toml").write_text('[namespaces.here]\nurl = "memory:"\n')

    assert set(load(None, environ={}, here=tmp_path).config.namespaces) == {"here"}
