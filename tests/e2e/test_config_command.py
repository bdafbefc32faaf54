"""`pairgate config`: shipped files are printed as they are, and answers become a configuration."""

import json
import re
import stat
from pathlib import Path

import pytest
import trio

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
                ("Address to listen at", ""),
                ("Storage Queue", "y"),
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
            ("Key of the primary", "first"),
            ("one of", "pairgate"),
            ("URL of the primary", "servicebus+https://me@gateway.example.net"),
            ("Key of the primary", "the second key"),
            ("Kind of the secondary", "none"),
            ("Queues", ""),
            ("Address to listen at", ""),
        )
        shown = terminal.sees("Storage Queue")
        terminal.types("n")
        code, output = terminal.ends()

    assert code == 0, output
    assert "the second key" not in shown + output
    assert (tmp_path / "keys" / "primary").read_text() == "the second key\n"
    assert "the second key" not in (tmp_path / "new.toml").read_text()


def test_without_answers_nothing_is_written(tmp_path: Path) -> None:
    result = pairgate("config", "new", tmp_path / "new.toml", stdin=b"embedded\n")

    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "application").write_text("old")

    result = pairgate("config", "new", tmp_path / "new.toml", stdin=b"\nnone\n\n\n\n")

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
                ("Queues", ""),
                ("Address to listen at", ""),
                ("Storage Queue", ""),
                ("Move the backlog home", ""),
                ("Label of the backlog queues", "shop"),
            )
            return terminal.ends()

    code, output = await trio.to_thread.run_sync(ask)
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
