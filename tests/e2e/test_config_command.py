"""`pairgate config`: shipped files are printed as they are, and answers become a configuration."""

import json
import re
import stat
from pathlib import Path

import pytest
import trio

from gateway.demo.ports import free_port
from tests.command_line import pairgate
from tests.e2e.commands import run
from tests.e2e.processes import ROOT, Gateways
from tests.e2e.rabbitmq_nodes import VHOST, ExampleNodes
from tests.harness.rabbitmq import USER
from tests.harness.terminal import Terminal, at_terminal

CONF = ROOT / "conf"
WEB = "gateway/frontends/admin/web/"
BIND = re.compile(r'(bind = "127\.0\.0\.1):\d+"')


def test_the_file_with_every_option_is_printed() -> None:
    result = pairgate("config", "--default")

    assert result.exit_code == 0
    assert result.stdout == (CONF / "pairgate.toml").read_text()


@pytest.mark.parametrize("file", sorted((CONF / "examples").iterdir()), ids=lambda file: file.name)
def test_an_example_is_printed(file: Path) -> None:
    result = pairgate("config", "--example", file.name.removesuffix(".toml"), "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["text"] == file.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--example", "nope"), "'rabbitmq-pair'"),
        ((), "one of --default, --example NAME, `new` and `show` expected"),
        (("--default", "--example", "embedded"), "one of --default"),
    ],
)
def test_a_wrong_usage_of_config_says_what_there_is(arguments: tuple[str, ...], text: str) -> None:
    result = pairgate("config", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def answer(terminal: Terminal, *answers: tuple[str, str]) -> None:
    """
    Type each answer when its question is on the screen, to its last space: before that space a
    question for a secret discards typed characters.
    """
    for question, text in answers:
        terminal.sees(question)
        terminal.sees(": ")
        terminal.types(text)


@pytest.mark.slow
async def test_a_pair_of_stores_is_asked_for_and_served(gateways: Gateways) -> None:
    folder = gateways.folder / "gateway"
    folder.mkdir()

    def ask() -> tuple[int, str]:
        with at_terminal(folder, "config", "new") as terminal:
            answer(
                terminal,
                ("Kind of the primary", ""),
                ("Kind of the secondary", "embedded"),
                ("Queues", "orders, bills"),
                ("must keep their order", "jobs"),
                ("jobs: none of the queues", "bills"),
                ("Storage Queue", "y"),
                ("Address to listen at", "localhost:5"),
                ("Error: endpoints[0].bind", ""),
                ("Ports of", "5672 5300"),
                ("4 numbers expected", "5672 5300 10001 9641"),
                ("Move the backlog home", ""),
            )
            return terminal.ends()

    code, output = await trio.to_thread.run_sync(ask)
    file = folder / "pairgate.toml"
    text = file.read_text()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder / "keys").iterdir()}
    again = await run(folder, "config", "new")
    file.write_text(BIND.sub(r'\1:0"', text))
    checked = await run(folder, "check")
    gateway = await gateways.start(file.read_text(), name="gateway")
    gateway.config_file.write_text(gateway.config)
    sent = await run(folder, "send", "bills", "hello")
    anonymous = await run(folder, "token", "orders", "--json")

    assert code == 0, output
    assert "next: pairgate check" in output
    assert "SharedAccessKey=$(cat keys/application);UseDevelopmentEmulator=true;" in output
    assert "[namespaces.store]" in text
    assert 'secondary = "store-secondary"' in text
    assert 'ordered = ["bills"]' in text
    assert "127.0.0.1:9641" in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert modes == dict.fromkeys(("application", "account", "envelope"), 0o600)
    assert stat.S_IMODE((folder / "keys").stat().st_mode) == 0o700
    assert again[0] == 2
    assert "already there" in again[2]
    assert checked[0] == 0, checked
    assert sent[0] == 0, sent
    assert json.loads(anonymous[1])["signed_by"] == "application"


@pytest.mark.slow
def test_a_wrong_answer_is_asked_for_again_and_a_secret_is_not_shown(tmp_path: Path) -> None:
    with at_terminal(tmp_path, "config", "new", "new.toml") as terminal:
        answer(
            terminal,
            ("Kind of the primary", "pairgate"),
            ("URL of the primary", "gateway.example.net"),
            ("one of", f"servicebus+http://me@127.0.0.1:{free_port()}"),
            ("Key of the primary", "the first key"),
            ("Keep these answers", "n"),
            ("Kind of the primary (", ""),
            ("URL of the primary", f"servicebus+http://you@127.0.0.1:{free_port()}"),
            ("as before", "the second key"),
            ("Keep these answers", "y"),
            ("Kind of the secondary", "none"),
            ("Queues", ""),
            ("Storage Queue", "n"),
            ("Address to listen at", ""),
        )
        shown = terminal.sees("Ports of")
        terminal.types("")
        code, output = terminal.ends()

    assert code == 0, output
    assert "the second key" not in shown + output
    assert (tmp_path / "keys" / "pairgate").read_text() == "the second key\n"
    assert "the second key" not in (tmp_path / "new.toml").read_text()


def test_without_answers_nothing_is_written(tmp_path: Path) -> None:
    result = pairgate("config", "new", tmp_path / "new.toml", stdin=b"")

    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interview_that_is_left_goes_on_with_its_answers(tmp_path: Path) -> None:
    file, draft = tmp_path / "new.toml", tmp_path / "new.toml.answers"

    left = pairgate("config", "new", file, stdin=b"embedded\nembedded\norders bills\n")
    mode = stat.S_IMODE(draft.stat().st_mode)
    done = pairgate("config", "new", file, "--json", stdin=b"\n" * 9)

    assert left.exit_code == 1
    assert "the answers are kept in" in left.stderr.lower()
    assert mode == 0o600
    assert done.exit_code == 0, done.stderr
    assert 'queues = ["orders", "bills"]' in file.read_text()
    assert not draft.exists()
    assert json.loads(done.stdout)["next"][0] == f"pairgate check --config {file}"


def test_answers_outlive_a_configuration_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()

    result = pairgate("config", "new", tmp_path / "new.toml", stdin=b"\nnone\n\n\n\n\n")

    assert result.exit_code == 1
    assert "Error: " in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys", "new.toml.answers"]


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "application").write_text("old")

    result = pairgate("config", "new", tmp_path / "new.toml", stdin=b"\nnone\n\n\n\n\n")

    assert result.exit_code == 2
    assert "keys/application: already there" in result.stderr
    assert (tmp_path / "keys" / "application").read_text() == "old"
    assert not (tmp_path / "new.toml").exists()


@pytest.mark.slow
@pytest.mark.live
async def test_a_pair_with_rabbitmq_passes_check(rabbits: ExampleNodes, tmp_path: Path) -> None:
    await rabbits.south.prepare("rabbitmq-definitions.json")
    port = await trio.to_thread.run_sync(lambda: rabbits.south.node.port)

    def ask() -> tuple[int, str]:
        with at_terminal(tmp_path, "config", "new") as terminal:
            answer(
                terminal,
                ("Kind of the primary", ""),
                ("Kind of the secondary", "rabbitmq"),
                ("URL of the secondary", f"rabbitmq://{USER}@127.0.0.1:{port}/{VHOST}"),
                ("Password of the secondary", USER),
                ("management API", ""),
                ("Label of the backlog queues", "shop"),
                ("Queues", "orders bills"),
                ("Storage Queue", ""),
                ("Address to listen at", ""),
                ("Ports of", ""),
                ("Move the backlog home", ""),
            )
            return terminal.ends()

    code, output = await trio.to_thread.run_sync(ask)
    definitions = json.loads((tmp_path / "definitions-rabbitmq.json").read_text())
    file = tmp_path / "pairgate.toml"
    file.write_text(BIND.sub(r'\1:0"', file.read_text()))
    before = await run(tmp_path, "check")
    made = await run(tmp_path, "provision")
    after = await run(tmp_path, "check")

    assert code == 0, output
    assert before[0] == 1
    assert "run `pairgate provision`" in before[1]
    assert after[0] == 0, (made, after)
    assert "10 of 10 backlog queues are usable" in after[1]
    assert {each["user"] for each in definitions["permissions"]} >= {USER, "provision"}
    assert definitions["permissions"][0]["read"].startswith("^shop/x-")
