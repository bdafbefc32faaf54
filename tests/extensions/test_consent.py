"""
Consent is asked in one way: what is done that to is named, and its name is typed, at a terminal and
on the page; a script says `--yes`.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
import trio

from gateway.cli import COMMANDS, command_named
from gateway.wire.pairgate.control_calls import CONTROL_CALLS
from tests.e2e.commands import run, with_fixed_port
from tests.e2e.conftest import gateways
from tests.e2e.processes import GatewayProcess, Gateways
from tests.e2e.rest import send
from tests.extensions.drill.drill import PAIR
from tests.harness.terminal import at_terminal

__all__ = ["gateways"]

ROOT: Final = Path(__file__).parents[2]
SUBSCRIPTION: Final = "news/Subscriptions/all"
QUEUE: Final = "east/x-servicebus-transfer/0"
# Each command that asks: its arguments, the name to type, and what it says before.
ASKS: Final = {
    ("delete", "queue"): (("one",), "one", "queue one will be deleted"),
    ("delete", "topic"): (("news",), "news", "topic news will be deleted"),
    ("delete", "subscription"): (
        ("news", "all"),
        SUBSCRIPTION,
        f"subscription {SUBSCRIPTION} will be deleted",
    ),
    ("purge",): ((QUEUE,), QUEUE, f"1 messages of {QUEUE} will be deleted"),
    ("drill",): (("one", "--no-load"), "east", "For this gateway east refuses all connections"),
}
# Options that stand for no consent: they order what was refused, or a move that is only shown.
OTHERS: Final = {
    "--force": {
        ("failover",),
        ("failback",),
        ("pause",),
        ("resume",),
        ("keys", "rotate"),
        ("move", "start"),
    },
    "--execute": {("redrive",)},
}
ORDERS: Final = [each for each in CONTROL_CALLS if not each.reads]
# Functions that ask something else: answers for a new configuration, and the key of a user.
QUESTIONS: Final = {"commands/interview.py", "commands/admin.py", "commands/terminal.py"}


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in COMMANDS:
        command = command_named(name)
        yield (name,), command
        if isinstance(command, click.Group):
            yield from (((name, part), each) for part, each in command.commands.items())


def having(option: str) -> set[tuple[str, ...]]:
    return {name for name, each in commands() if any(option in one.opts for one in each.params)}


def test_each_command_that_asks_takes_the_same_answer() -> None:
    assert having("--yes") == set(ASKS)
    for option, names in OTHERS.items():
        assert having(option) == names
    assert having("--confirm") == having("-y") == set()


def test_a_question_is_asked_in_no_other_place() -> None:
    asking = {
        str(path.relative_to(ROOT / "gateway"))
        for path in (ROOT / "gateway").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"confirm", "prompt"}
        if isinstance(node.value, ast.Name) and node.value.id == "click"
    }

    assert asking == QUESTIONS


def test_the_page_has_the_name_typed_for_the_same_orders() -> None:
    script = (ROOT / "gateway" / "frontends" / "admin" / "web" / "orders.js").read_text()
    actions = re.findall(r"^  (\w+): \{\n(.*?)^  \},$", script, re.MULTILINE | re.DOTALL)
    typed = {name for name, body in actions if '"typed"' in body}
    consent = {name for name, body in actions if "consent: (" in body}

    asking = {name[0] for name in ASKS} & {name for name, _ in actions}
    assert typed == consent == asking == {"purge", "drill"}


def test_a_reason_is_the_logs_in_each_command_and_each_order_has_one() -> None:
    meant = {
        name: option.help
        for name, each in commands()
        for option in each.params
        if isinstance(option, click.Option) and "--reason" in option.opts and not option.hidden
    }
    without = [each.name for each in ORDERS if "reason" not in {key.name for key in each.keys}]

    assert {*meant.values()} == {"For the log, the status and other operators."}
    assert {name for name, *_ in meant} >= {each.name for each in ORDERS} & {*COMMANDS}
    assert sorted(without) == [
        "clear-faults",  # they end what has one
        "end-drill",
        "move-plan",  # it changes no entity
    ]


def test_a_control_call_that_deletes_repeats_the_name() -> None:
    """Other calls take back what else a call changes; a drill ends by itself."""
    repeating = {
        each.name for each in CONTROL_CALLS if "confirm" in {key.name for key in each.keys}
    }

    assert repeating == {"purge"}


async def state(gateway: GatewayProcess) -> object:
    """All that a command without consent must not change."""
    _, listed, _ = await run(gateway.folder, "list", "--json")
    _, told, _ = await run(gateway.folder, "status", "--json")
    pair = json.loads(told)["pair"]
    entities = sorted(each["name"] for each in json.loads(listed)["entities"])
    return entities, pair["backlog"]["pending"], pair["drill"]


async def prepared(gateways: Gateways) -> GatewayProcess:
    """A gateway with what each command needs: entities, and a message on the backlog."""
    config = PAIR.replace("[pairing]", "[pairing]\nbacklog_queues = 1\n", 1)
    gateway = await gateways.start(config)
    await with_fixed_port(gateway)
    for arguments in (
        ("create", "topic", "news"),
        ("create", "subscription", "news", "all"),
        ("pause",),
        ("failover", "two"),
    ):
        code, _, error = await run(gateway.folder, *arguments)
        assert code == 0, error
    assert await send(gateway.address, "two", b"x") == (201, "backlog")
    assert (await run(gateway.folder, "failback", "two"))[0] == 0
    return gateway


def answered(gateway: GatewayProcess, command: tuple[str, ...], typed: str) -> tuple[int, str, str]:
    """The exit code of the command after that answer, and what it said before and after it."""
    arguments, name, _ = ASKS[command]
    with at_terminal(gateway.folder, *command, *arguments) as terminal:
        before = terminal.sees(f"Type {name} to go on")
        terminal.types(typed)
        code, after = terminal.ends()
        return code, " ".join(before.split()), after


@pytest.mark.slow
async def test_nothing_is_done_without_consent(gateways: Gateways) -> None:
    gateway = await prepared(gateways)
    before = await state(gateway)

    for command, (arguments, _, consequence) in ASKS.items():
        code, _, error = await run(gateway.folder, *command, *arguments)
        assert (code, consequence in error, "add --yes" in error) == (2, True, True), error
        code, said, after = await trio.to_thread.run_sync(answered, gateway, command, "yes")
        assert (code, consequence in said, "nothing was done" in after) == (1, True, True), said
    unchanged = await state(gateway)
    *deleting, _ = ASKS  # a drill that is begun by its name: its own tests
    for command in reversed(deleting):
        code, _, after = await trio.to_thread.run_sync(answered, gateway, command, ASKS[command][1])
        assert code == 0, after

    assert unchanged == before == (["news", SUBSCRIPTION, "one", "two"], 1, None)
    assert await state(gateway) == (["two"], 0, None)
