"""Parts of the tests of command line that other tests need, too."""

from pathlib import Path
from typing import Final

from click.testing import CliRunner, Result

from gateway.cli import main

PAIR = """
[namespaces.east]
url = "embedded:east.db"
queues = ["orders"]
[namespaces.west]
url = "embedded:west.db"
[pairing]
primary = "east"
secondary = "west"
label = "east"
"""
# Of a receive of a message that is there: a machine that stalls for a second has it none the less.
PATIENTLY: Final = ("--wait", "1m")


def pairgate(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
