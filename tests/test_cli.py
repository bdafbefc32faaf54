"""Arguments, output, and exit codes."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.cli import COMMANDS, command_named, summary_of
from tests.command_line import PAIR, PATIENTLY, pairgate
from tests.stores import make_stores

ENDPOINT = '[[endpoints]]\nprotocol = "service-bus-http"\nbind = "127.0.0.1:0"\n'


@pytest.fixture
def unserved(tmp_path: Path) -> Path:
    """A configuration that no gateway has served yet."""
    file = tmp_path / "pairgate.toml"
    file.write_text(PAIR)
    return file


@pytest.fixture
def pair(unserved: Path) -> Path:
    make_stores(unserved)
    return unserved


def test_a_message_is_sent_seen_and_taken(pair: Path) -> None:
    sent = pairgate("send", "orders", "hello", "--config", pair)
    seen = pairgate("peek", "orders", "--config", pair)
    taken = pairgate("receive", "orders", "--config", pair, *PATIENTLY)
    after = pairgate("peek", "orders", "--config", pair)

    assert sent.exit_code == 0, sent.output
    assert "accepted by namespace east (primary)" in sent.stdout
    assert "hello" in seen.stdout
    assert (taken.exit_code, "hello" in taken.stdout) == (0, True)
    assert (after.exit_code, after.stdout) == (0, "")


def test_a_sent_message_has_the_properties_that_were_asked_for(pair: Path) -> None:
    options = ["--id", "7", "--property", "a=b=c", "--content-type", "text/plain", "--ttl", "5m"]

    sent = pairgate("send", "orders", "--json", "--config", pair, *options, stdin=b"\xff")
    seen = pairgate("peek", "orders", "--json", "--config", pair)

    assert json.loads(sent.stdout)["message_id"] == "7"
    value = json.loads(seen.stdout)
    assert value["message_id"] == "7"
    assert value["properties"] == {"a": "b=c"}
    assert value["content_type"] == "text/plain"
    assert value["body_base64"] == "/w=="


def test_a_terminal_is_not_steered_by_messages(pair: Path) -> None:
    pairgate("send", "orders", "a\x1b[2Jb", "--id", "\x1b[31m", "--config", pair)

    seen = pairgate("peek", "orders", "--config", pair)

    assert "\x1b" not in seen.stdout
    assert "a\\x1b[2Jb" in seen.stdout


def test_an_empty_queue_is_exit_code_1(pair: Path) -> None:
    taken = pairgate("receive", "orders", "--wait", "50ms", "--config", pair)

    assert taken.exit_code == 1
    assert "no message in orders" in taken.stderr


def test_dead_letters_are_a_queue_too(pair: Path) -> None:
    taken = pairgate("receive", "orders", "--dead-letters", "--wait", "50ms", "--config", pair)

    assert "orders/$DeadLetterQueue" in taken.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["send", "no queue", "x"], "entity name"),
        (["send", "orders", "x", "--namespace", "north"], "there is no namespace 'north'"),
        (["send", "orders", "x", "--property", "a"], "NAME=VALUE or NAME:=JSON expected"),
        (["send", "orders", "x", "--ttl", "5"], "a duration such as"),
        (["receive", "orders", "--count", "0"], "0"),
        (["syphon", "--to", "north"], "there is no namespace 'north'"),
        (["serve"], "add [[endpoints]]"),
        (["sever"], "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], text: str, pair: Path) -> None:
    options = [] if arguments == ["sever"] else ["--config", str(pair)]

    result = pairgate(*arguments, *options)

    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["serve", "syphon", "check", "provision"])
def test_a_wrong_configuration_is_exit_code_2(command: str, pair: Path) -> None:
    pair.write_text(PAIR + "bogus = 1\nbacklog_queues = 0\n")

    result = pairgate(command, "--config", pair)

    assert result.exit_code == 2
    assert "pairing.bogus: unknown key" in result.stderr
    assert "pairing.backlog_queues: must be >= 1" in result.stderr


@pytest.mark.parametrize("arguments", [["send", "nope", "x"], ["peek", "nope"]])
def test_an_unknown_queue_is_exit_code_1_with_what_to_do(arguments: list[str], pair: Path) -> None:
    result = pairgate(*arguments, "--config", pair)

    assert result.exit_code == 1
    assert "there is no entity nope" in result.stderr
    assert "name it in queues = [...] of [namespaces.east]" in result.stderr
    assert "pairgate provision" in result.stderr


def test_a_namespace_that_nobody_serves_is_a_temporary_failure(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text('[namespaces.here]\nurl = "servicebus+http://127.0.0.1:1"\n')

    result = pairgate("send", "orders", "x", "--config", file)

    assert result.exit_code == os.EX_TEMPFAIL


def test_provision_makes_what_is_missing_once(unserved: Path) -> None:
    pair = unserved
    pair.write_text(
        PAIR.replace('queues = ["orders"]', "").replace('label = "east"', 'label = "a"')
    )
    make_stores(pair)
    pair.write_text(PAIR)

    first = pairgate("provision", "--json", "--config", pair)
    second = pairgate("provision", "--json", "--config", pair)

    made = {each["namespace"]: each["queues"] for each in json.loads(first.stdout)}
    assert made["east"] == ["orders"]
    backlogs = [f"east/x-servicebus-transfer/{index}" for index in range(10)]
    assert made["west"] == [*backlogs, "east/x-pairgate-syphons"]
    assert [each["queues"] for each in json.loads(second.stdout)] == [[], []]


def test_check_is_good_when_everything_is_there(pair: Path) -> None:
    pair.write_text(PAIR + ENDPOINT)

    result = pairgate("check", "--json", "--config", pair)

    assert result.exit_code == 0
    findings = json.loads(result.stdout)["findings"]
    assert {finding["grade"] for finding in findings} == {"good", "warning"}  # one disk
    assert any("10 of 10 backlog queues are usable" in finding["text"] for finding in findings)


def test_a_configuration_for_a_syphon_alone_is_good_and_one_for_nobody_is_not(pair: Path) -> None:
    of_syphon = '[[endpoints]]\nprotocol = "admin"\nprocess = "syphon"\nbind = "127.0.0.1:0"\n'
    pair.write_text(PAIR + of_syphon)
    alone = pairgate("check", "--config", pair)
    pair.write_text(PAIR)
    nobody = pairgate("check", "--config", pair)

    assert alone.exit_code == 0, alone.stdout
    assert "note    endpoints: this configuration is for `pairgate syphon`" in alone.stdout
    assert nobody.exit_code == 1
    assert "bad     endpoints: no endpoint is configured" in nobody.stdout


def test_check_changes_nothing(unserved: Path) -> None:
    unserved.write_text(PAIR + ENDPOINT)

    result = pairgate("check", "--config", unserved)

    assert result.exit_code == 0, result.stdout
    assert f"no store at {unserved.parent}/east.db yet" in result.stdout
    assert sorted(unserved.parent.iterdir()) == [unserved]


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders", "x"],
        ["peek", "orders"],
        ["receive", "orders"],
        ["listen", "orders", "--exec", "/bin/true"],
        ["syphon"],
        ["redrive"],
        ["provision"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_in_a_wrong_folder_nothing_is_made_and_the_configuration_is_named(
    arguments: list[str], unserved: Path
) -> None:
    result = pairgate(*arguments, "--config", unserved)

    assert result.exit_code == 2, result.output
    store = "west.db" if arguments[0] == "redrive" else "east.db"
    assert f"there is no store at {unserved.parent}/{store}, which {unserved} names" in (
        result.stderr + result.stdout
    )
    assert "`pairgate serve` creates it" in result.stderr + result.stdout
    assert sorted(unserved.parent.iterdir()) == [unserved]


def test_check_names_a_damaged_store(unserved: Path) -> None:
    pair = unserved
    (pair.parent / "east.db").write_bytes(b"no database at all" * 1000)

    result = pairgate("check", "--config", pair)

    assert result.exit_code == 1
    assert "bad" in result.stdout
    assert "east.db" in result.stdout
    assert "Traceback" not in result.output


def test_help_names_every_command() -> None:
    result = pairgate("--help")

    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout


def test_entities_of_the_emulators_file_are_made(pair: Path) -> None:
    pair.write_text(PAIR.replace('queues = ["orders"]', 'entities = "Config.json"'))
    (pair.parent / "Config.json").write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "sb", "Queues": [{"Name": "bills"}]}]}}'
    )

    made = pairgate("provision", "--json", "--config", pair)

    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)[0] == {"namespace": "east", "queues": ["bills"], "problem": None}


def test_certificates_are_made_once(tmp_path: Path) -> None:
    first = pairgate("certs", tmp_path / "tls", "--json")
    kept = (tmp_path / "tls" / "ca.pem").read_bytes()
    second = pairgate("certs", tmp_path / "tls")

    assert first.exit_code == 0, first.output
    made = {path.name: str(path) for path in (tmp_path / "tls").iterdir()}
    assert json.loads(first.stdout) == made
    assert set(made) == {"ca.pem", "server.pem", "server.key", "client.pem", "client.key"}
    assert (second.exit_code, "already there" in second.stderr) == (2, True)
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == kept


def test_certificates_that_cannot_be_written_are_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = pairgate("certs", tmp_path / "file" / "tls")

    assert (result.exit_code, "file/tls" in result.stderr) == (1, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_where_the_table_says(name: str) -> None:
    command = command_named(name)

    assert isinstance(command, click.Command)
    assert command.name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(name: str) -> None:
    text = " ".join(inspect.cleandoc(command_named(name).help or "").split())

    assert summary_of(name).endswith(".")
    assert f"{text} ".startswith(f"{summary_of(name)} ")


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command, or those of the group."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{path} {name}")


def test_every_command_prints_json_for_machines() -> None:
    found = {path: leaf for name in COMMANDS for path, leaf in leaves(command_named(name), name)}
    without = [
        path
        for path, leaf in found.items()
        if not any("--json" in parameter.opts for parameter in leaf.params)
    ]

    assert {"list", "create queue", "store check", "config", "config new"} <= set(found)
    assert without == []


def modules_after(code: str, *arguments: str) -> set[str]:
    """The modules of a process that has run the code, and then ended as it wanted to."""
    show = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    command = [sys.executable, "-c", f"{show}; {code}", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split())


# Imports are a part of every start: of a gateway that comes back, of an agent's listeners, of the
# probes of each pod.
def test_a_gateway_starts_without_what_only_others_need() -> None:
    loaded = modules_after(
        "from gateway.cli import command_named; command_named('serve');"
        " from gateway.extensions.listing import parts; parts('others'); parts('pools')"
    )

    assert "gateway.app.serving" in loaded
    assert loaded.isdisjoint(
        {
            "asyncio",
            "cryptography",
            "gateway.brokers.rabbitmq.broker",
            "gateway.brokers.servicebus.broker",
            "gateway.brokers.storage_queue.broker",
            "gateway.demo",
            "gateway.extensions.cluster.cluster",
            "gateway.listening.listener",
            "opentelemetry",
            "prometheus_client",
            "rich",
            "structlog",
        }
    )


FOREIGN = {"apsw", "cattrs", "cryptography", "h11", "rich", "structlog", "trio", "wsproto"}


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("gateway.")}


def test_a_list_of_commands_imports_none_of_them() -> None:
    loaded = modules_after("from gateway.cli import main; main()", "--help")

    assert {name for name in own(loaded) if "extensions" not in name} == {
        *("gateway.cli", "gateway.commands", "gateway.commands.guidance")
    }
    assert loaded & FOREIGN == set()


def test_a_probe_imports_what_it_needs_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "pairgate.toml"
    file.write_text('[[endpoints]]\nprotocol = "admin"\nbind = "127.0.0.1:1"\n')
    code = "from gateway.cli import main; main()"
    loaded = modules_after(code, "status", "--ready", "--config", str(file))
    without = own(modules_after(code, "--version"))

    assert own(loaded) - without == {
        "gateway.app",
        "gateway.app.failure",
        "gateway.app.operations",
        "gateway.app.operations.admin_choice",
        "gateway.app.operations.probing",
        "gateway.commands.admin",
        "gateway.commands.status",
        "gateway.commands.terminal",
        "gateway.config",
        "gateway.config.given",
        "gateway.config.endpoints",
        "gateway.config.errors",
        "gateway.config.source",
        "gateway.config.values",
        "gateway.domain",
        "gateway.domain.errors",
        "gateway.frontends",
        "gateway.frontends.admin",
        "gateway.frontends.admin.readiness",
        "gateway.net",
        "gateway.net.certificates",
        "gateway.net.secret_files",
        "gateway.net.server_address",
        "gateway.net.tls",
        "gateway.net.unix",
    }
    assert loaded & FOREIGN == set()
