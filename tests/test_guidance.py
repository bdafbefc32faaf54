"""The help of the commands: groups, whole sentences, examples, and names like a wrong one."""

from collections.abc import Iterator

import click
import pytest

from gateway.cli import COMMANDS, command_named, summary_of
from gateway.commands.guidance import EXAMPLES, GROUPS
from tests.command_line import pairgate
from tests.mentions import problem_of


def names(command: click.Command, name: str) -> Iterator[str]:
    yield name
    if isinstance(command, click.Group):
        for part in command.commands:
            yield f"{name} {part}"


def test_each_command_is_in_one_group() -> None:
    grouped = [name for group in GROUPS.values() for name in group]

    assert sorted(grouped) == sorted(COMMANDS)


def test_each_command_has_an_example_that_it_takes() -> None:
    every = {each for name in COMMANDS for each in names(command_named(name), name)}
    written = {name: f"{name} {example}".partition(" >")[0] for name, example in EXAMPLES.items()}
    wrong = {name: found for name, text in written.items() if (found := problem_of(text))}

    assert every == set(EXAMPLES)
    assert wrong == {}


def test_the_list_has_each_sentence_whole_under_its_heading() -> None:
    shown = " ".join(pairgate("--help").stdout.split())
    places = [shown.index(f" {heading}: ") for heading in GROUPS]

    assert [name for name in COMMANDS if summary_of(name) not in shown] == []
    assert places == sorted(places)
    assert "Further:" not in shown


@pytest.mark.parametrize("arguments", [("failover", "--help"), ("create", "queue", "-h")])
def test_options_of_a_command_come_first_and_an_example_last(arguments: tuple[str, ...]) -> None:
    shown = pairgate(*arguments).stdout
    name = " ".join(arguments[:-1])
    own = "--until" if name == "failover" else "--sessions"

    assert shown.index(own) < shown.index("--config FILE")
    assert shown.rstrip().endswith(f"pairgate {name} {EXAMPLES[name]}")


@pytest.mark.parametrize(("wrong", "meant"), [("stauts", " Did you mean status?"), ("xyzzy", "")])
def test_a_wrong_command_is_asked_about(wrong: str, meant: str) -> None:
    ended = pairgate(wrong)

    assert ended.exit_code == 2
    assert f"No such command '{wrong}'.{meant}\n" in ended.stderr
