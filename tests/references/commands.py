"""The options of docs/reference/command-options.md: the texts that `--help` prints."""

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from gateway.cli import COMMANDS, command_named
from tests.references.tables import table

# An option that more commands have is described once, for all of them.
MOST_COMMANDS: Final = 15
CODE: Final = re.compile(r"`[^`]*`|(?<!\w)(?:--[a-z]|\$[A-Z])[\w-]*|\[\[[\w.]+\]\]")

Option = tuple[str, str]  # as `--help` shows it: its name with its value, and its meaning


def parts() -> Mapping[str, str]:
    """The options of most commands, and each command with its usage, its help and its options."""
    contexts = list(commands())
    counts = Counter(option for each in contexts for option in options(each))
    common = [option for option, times in counts.most_common() if times > MOST_COMMANDS]
    return {
        "common": shown(common),
        "commands": "\n".join(section(each, common) for each in contexts),
    }


def commands() -> Iterator[click.Context]:
    for name in COMMANDS:
        command = command_named(name)
        context = click.Context(command, info_name=name)
        yield context
        for each in command.commands.values() if isinstance(command, click.Group) else ():
            yield click.Context(each, info_name=each.name, parent=context)


def options(context: click.Context) -> list[Option]:
    records = [
        each.get_help_record(context)
        for each in context.command.params
        if isinstance(each, click.Option)
    ]
    return [each for each in records if each is not None]


def section(context: click.Context, common: Sequence[Option]) -> str:
    command, given = context.command, options(context)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    paragraphs = [
        f"## `{context.command_path}`",
        f"`pairgate {usage}`",
        marked(inspect.cleandoc(command.help or "")),
    ]
    if own := [each for each in given if each not in common]:
        paragraphs.append(shown(own).rstrip())
    if others := [name(each) for each in common if each in given]:
        paragraphs.append(f"Common options: {', '.join(others)}.")
    return "\n\n".join(paragraphs) + "\n"


def shown(given: Sequence[Option]) -> str:
    rows = (
        (f"`{option.replace('|', ' or ')}`", marked(meaning).replace("  ", " "))
        for option, meaning in given
    )
    return table(("option", "meaning"), *rows)


def marked(text: str) -> str:
    """The text with options, variables and sections marked as code."""
    return CODE.sub(lambda found: f"`{found[0].strip('`')}`", text)


def name(option: Option) -> str:
    """The option's name alone."""
    return f"`{option[0].split()[0].rstrip(',')}`"
